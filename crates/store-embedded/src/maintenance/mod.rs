//! Maintenance: sealing full heads, merging segments, rewriting logs that are mostly dead. One job
//! runs at a time, while readers and the writer continue; the job's result is installed in one
//! step. The files of a failed job are removed, and later jobs use the same file numbers.
//!
//! A thread (`thread`) runs the due jobs (`run`, `round`); `jobs` is the state that the thread
//! shares with the writer and with searches.

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
