//! Compares the codec's reading and writing with serde_json and with signed events.

mod events;
mod filters;
mod json;
mod messages;
mod negentropy;
mod real;
mod records;
mod support;
