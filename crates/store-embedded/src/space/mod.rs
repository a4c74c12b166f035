//! Disk space: for the writer (`writes`), for the jobs of maintenance (`job_room`), and as a
//! reserve (`reserve`) that is used when the disk is full. `rule` has the amounts that stay free.
//! `pressure` decides what maintenance does when space is short.

pub(crate) mod errors;
pub(crate) mod job_room;
pub(crate) mod pressure;
pub(crate) mod reserve;
pub(crate) mod rule;
pub(crate) mod state;
pub(crate) mod writes;
