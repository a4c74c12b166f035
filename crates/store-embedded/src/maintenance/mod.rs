//! Maintenance: seals full heads, merges segments, and rewrites logs that are mostly dead. One job
//! runs at a time, while readers and the writer continue. The result of a job becomes visible in
//! one step. If a job fails, its files are removed, and later jobs use the file numbers again.
//!
//! A thread (`thread`) runs the due jobs (`run`, `round`). The thread shares its state, `jobs`,
//! with the writer and with searches.

pub(crate) mod compact;
mod damaged_addresses;
mod damaged_segment;
pub(crate) mod dead;
pub(crate) mod due;
pub(crate) mod erase;
pub(crate) mod erase_schedule;
pub(crate) mod error;
mod install;
pub(crate) mod jobs;
mod report;
mod rewrite;
mod round;
pub(crate) mod run;
pub(crate) mod sealing;
mod segments;
mod settle;
pub(crate) mod signal;
#[cfg(test)]
mod tests;
pub(crate) mod thread;
