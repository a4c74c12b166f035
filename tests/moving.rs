//! Moving from one store to another: copies, mirrors, and adoptions from nostream and mail servers;
//! with real servers, a real PostgreSQL, and processes that are killed.

mod adopt;
mod copy;
mod mailserver;
mod mirror;
