//! The mail server and its peers, in one process, with the client of the test kit.

mod kit;
mod peers;
mod trouble;
