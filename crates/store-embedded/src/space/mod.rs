//! Disk space: for the writer (`writes`), for the jobs of maintenance (`job_room`), and the reserve
//! for the time when the disk is full (`reserve`). `pressure` is how maintenance reacts to a lack.

pub(crate) mod errors;
pub(crate) mod job_room;
pub(crate) mod pressure;
pub(crate) mod reserve;
pub(crate) mod state;
pub(crate) mod writes;
