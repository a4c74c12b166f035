//! Checked by [`hark_fuzz::record::check`].
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| hark_fuzz::record::check(bytes));
