//! `hark sync`, `hark stream` and `hark router` between real servers, and with relays that violate
//! the protocol.

mod hostile;
mod nodes;
mod rates;
mod router;
mod stream;
mod sync;
