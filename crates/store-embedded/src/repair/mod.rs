//! Finds and repairs damage: the check (`hark check`), the slow check of a running server
//! (`scrub`), rebuilding from the logs (`rebuild`), dividing logs that are too large (`divide`),
//! and the salvage of a damaged shelf. Damaged segments of a running server are repaired by
//! maintenance.

pub(crate) mod check;
pub(crate) mod divide;
mod doubles;
pub(crate) mod file_lengths;
pub(crate) mod from_logs;
pub(crate) mod rebuild;
pub(crate) mod salvage;
pub(crate) mod scrub;
