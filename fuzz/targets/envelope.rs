//! Checked by [`hark_fuzz::envelope::check`].
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| hark_fuzz::envelope::check(bytes));
