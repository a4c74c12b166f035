//! Checked by [`hark_fuzz::log::check`].
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| hark_fuzz::log::check(bytes));
