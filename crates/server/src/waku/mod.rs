//! Waku's door.

pub mod history;
pub mod rest;
