//! The mail server and its peers, in one process, with a client of our own.

mod kit;
mod peers;
mod trouble;
