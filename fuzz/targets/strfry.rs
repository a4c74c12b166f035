//! Checked by [`hark_fuzz::strfry::check`].
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| hark_fuzz::strfry::check(bytes));
