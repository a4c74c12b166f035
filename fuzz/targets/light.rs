//! Checked by [`hark_fuzz::light::check`].
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| hark_fuzz::light::check(bytes));
