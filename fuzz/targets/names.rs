//! Checked by [`hark_fuzz::names::check`].
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| hark_fuzz::names::check(bytes));
