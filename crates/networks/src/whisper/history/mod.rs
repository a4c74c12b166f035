//! History of envelopes (8/WAKU-MAIL): requests become queries, and the records that a query finds
//! become pages.

mod error;
mod json;
mod page;
mod question;
mod request;

pub use error::MailError;
pub use json::JsonRequestFault;
pub use page::{EnvelopePage, PageBounds};
pub use question::{EnvelopeQuestion, TopicCondition};
pub use request::{EnvelopeRequest, TopicChoice};
