//! `hark sync`, `hark stream` and `hark router` between real servers.

mod nodes;
mod router;
mod stream;
mod sync;
