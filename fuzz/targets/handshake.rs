//! Checked by [`hark_fuzz::handshake::check`].
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| hark_fuzz::handshake::check(bytes));
