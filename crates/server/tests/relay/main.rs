//! The relay over a real WebSocket, with a client of another make, on the memory store.

mod ask;
mod auth;
mod control;
mod down;
mod gate;
mod kit;
mod live;
mod operators;
mod publish;
mod transport;
mod trouble;
