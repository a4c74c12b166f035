//! How the machine's own people and programs reach a running server.

pub mod control;
pub(crate) mod http;
pub(crate) mod process;
pub(crate) mod prometheus;
mod protocol;
pub(crate) mod report;
mod served;
