//! The embedded store from outside, on disks that are full, that fail, and that lose files.

mod batch;
mod damaged;
mod erase;
mod format;
mod links;
mod private;
mod room;
mod scrub;
mod support;
mod unreadable;
