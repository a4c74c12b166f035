//! Hexadecimal digits as text.

use hark_codec::hex;

/// Returns the hexadecimal digits of these bytes, in lower case.
pub fn digits(bytes: &[u8]) -> String {
    let mut out = Vec::new();
    hex::encode_into(bytes, &mut out);
    String::from_utf8(out).expect("digits are ASCII")
}
