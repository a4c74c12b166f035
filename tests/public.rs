//! A public relay among hostile clients: memory stays bounded, and other clients are served.
//! `HARK_LONG=1` runs with realistic numbers; `--nocapture` prints the results.

mod attack;
mod memory;
mod reload;
mod together;
