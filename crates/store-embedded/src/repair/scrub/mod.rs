//! The slow check: while a server runs, it reads the whole shelf again and again, in small steps,
//! and compares the segments with the log.
//!
//! For each segment, the slow check verifies the checksums of the sections and of the addresses.
//! Then it reads the segment's logs frame by frame, and looks up each record in the index by the
//! record's id and terms (`read`). Maintenance makes damaged files that are derived from the log
//! again (`maintenance/damaged_segment.rs`). A damaged frame cannot be made again and is recorded: records in
//! [`crate::damage`], files in [`StoreStats::damaged_files`].
//!
//! A pass begins with the first log and ends with the last log. Only the first pass of a process
//! begins with a random log, so that all files are read in the long run, however often the server
//! restarts. Bytes in the system's cache are not read from the disk again.
//!
//! [`StoreStats::damaged_files`]: hark_archive::store::StoreStats::damaged_files

mod place;
mod read;
mod request;
pub(crate) mod state;
mod step;
#[cfg(test)]
mod tests;
pub(crate) mod thread;
