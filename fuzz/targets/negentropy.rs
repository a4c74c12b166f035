//! Checked by [`hark_fuzz::negentropy::check`].
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| hark_fuzz::negentropy::check(bytes));
