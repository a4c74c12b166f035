//! Checked by [`hark_fuzz::segment::check`].
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| hark_fuzz::segment::check(bytes));
