//! Checked by [`hark_fuzz::message::check`].
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| hark_fuzz::message::check(bytes));
