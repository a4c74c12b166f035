//! Checked by [`hark_fuzz::socket::check`].
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| hark_fuzz::socket::check(bytes));
