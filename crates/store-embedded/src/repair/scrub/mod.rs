//! The slow check. While a server runs, the slow check reads the whole shelf again and again, in
//! small steps, and compares the segments with the log.
//!
//! For each segment, the check verifies the checksums of the sections and of the addresses. Then it
//! reads the segment's logs frame by frame, and searches the index for each record, by the record's
//! id and terms (`read`). Maintenance replaces damaged files that can be made from the log
//! (`maintenance/damaged_segment.rs`). A damaged frame cannot be replaced. Its record is noted in
//! [`crate::damage`], and its file in [`StoreStats::damaged_files`].
//!
//! A pass begins with the first log and ends with the last log. Only the first pass after a start
//! begins with a random log, so that in the long run all files are read even if the server restarts
//! often. The check does not bypass the system's cache, so it does not read cached bytes from the
//! disk.
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
