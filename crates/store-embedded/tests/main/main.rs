//! Tests of the embedded store's public interface, on disks that are full, fail or lose files.

mod batch;
mod damaged;
mod erase;
mod format;
mod lent;
mod links;
mod private;
mod room;
mod scrub;
mod support;
mod unreadable;
