//! Moving from one store to another: copies, mirrors, and adoptions from other relays and mail servers;
//! with real servers, a real PostgreSQL, and processes that are killed.

mod adopt;
mod copy;
mod mailserver;
mod mirror;
mod relays;
