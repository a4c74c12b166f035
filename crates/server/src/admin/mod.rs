//! How the machine's own people and programs reach a running server.

pub mod control;
mod protocol;
mod served;
