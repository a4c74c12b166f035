//! The relay over a real WebSocket, with a client from another library, on the memory store.

mod ask;
mod auth;
mod budgets;
mod comparison_bounds;
mod comparisons;
mod compression;
mod control;
mod down;
mod gate;
mod kit;
mod limits;
mod listen;
mod live;
mod names;
mod operators;
mod outboxes;
mod plugin;
mod policy;
mod publish;
mod transport;
mod trouble;
mod trust;
mod wire;
