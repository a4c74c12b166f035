//! History of messages: requests become queries, and the records that a query finds become pages
//! (RFC 13/WAKU2-STORE). Where the RFC and nwaku differ, docs/protocols.md names the behaviour that
//! Hark follows.

mod error;
mod page;
mod paging;
mod request;

pub use error::HistoryError;
pub use page::{DAMAGED, HistoryPage, PAGE_BYTES_MAX, answer};
pub use paging::HistoryQuery;
pub use request::{MessageRequest, VALUES_MAX};
