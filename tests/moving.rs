//! Moving from one store to another: copies, mirrors, and adoptions from nostream; with real
//! servers, a real PostgreSQL, and processes that are killed.

mod adopt;
mod copy;
mod mirror;
