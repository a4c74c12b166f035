//! Checked by [`hark_fuzz::waku::check`].
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| hark_fuzz::waku::check(bytes));
