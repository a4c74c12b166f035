//! Checked by [`hark_fuzz::filter::check`].
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| hark_fuzz::filter::check(bytes));
