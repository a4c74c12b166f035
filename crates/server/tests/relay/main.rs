//! The relay over a real WebSocket, with a client from another library, on the memory store.

mod ask;
mod auth;
mod budgets;
/// Also used by the tests of the binary, which each use a part of the module.
#[allow(dead_code)]
mod client;
/// Also used by the tests of the binary.
mod compare;
mod comparison_bounds;
mod comparisons;
mod compression;
mod control;
mod down;
mod gate;
mod kit;
mod limits;
mod live;
mod operators;
mod outboxes;
mod policy;
mod publish;
mod transport;
mod trouble;
mod wire;
