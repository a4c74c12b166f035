//! Moving from one store to another: copies, mirrors, and adoptions from other relays and mail
//! servers. The tests use real servers, a real PostgreSQL, and killed processes.

mod adopt;
mod copy;
mod mailserver;
mod mirror;
mod nwaku;
mod relays;
