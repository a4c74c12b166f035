//! Checked by [`hark_fuzz::request::check`].
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| hark_fuzz::request::check(bytes));
