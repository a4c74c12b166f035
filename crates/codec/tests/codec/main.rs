//! What the codec reads and writes, held against serde_json and against signed events.

mod events;
mod filters;
mod json;
mod messages;
mod negentropy;
mod real;
mod records;
mod support;
