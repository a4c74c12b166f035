//! Checked by [`hark_fuzz::event::check`].
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| hark_fuzz::event::check(bytes));
