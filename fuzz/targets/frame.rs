//! Checked by [`hark_fuzz::frame::check`].
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| hark_fuzz::frame::check(bytes));
