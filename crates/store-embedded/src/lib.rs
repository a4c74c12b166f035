//! The embedded archive: log, head, segments.
