//! Bytes as hex digits in JSON, in the notation of Ethereum's programs.

use hark_codec::hex;

/// Appends bytes as a JSON string.
pub fn put(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(b"\"0x");
    hex::encode_into(bytes, out);
    out.push(b'"');
}

/// Returns the hex digits of bytes, with 0x.
pub fn text(bytes: &[u8]) -> String {
    let mut digits = b"0x".to_vec();
    hex::encode_into(bytes, &mut digits);
    String::from_utf8_lossy(&digits).into_owned()
}

/// Reads bytes into `out`, which is cleared first: hex digits of either case, with or without 0x.
/// Returns false if the text has any other character.
pub fn read(text: &str, out: &mut Vec<u8>) -> bool {
    out.clear();
    let digits = text.strip_prefix("0x").unwrap_or(text);
    hex::decode_into(digits.as_bytes(), out)
        || hex::decode_into(digits.to_ascii_lowercase().as_bytes(), out)
}

/// Reads `N` bytes.
pub fn read_array<const N: usize>(text: &str) -> Option<[u8; N]> {
    let mut out = Vec::with_capacity(N);
    if read(text, &mut out) { out.try_into().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_read_in_either_case() {
        for text in ["0x00aBff7f", "00aBff7f", "0x00abff7f", "0x00ABFF7F"] {
            assert_eq!(read_array(text), Some([0, 0xab, 0xff, 0x7f]), "{text}");
        }
        for wrong in ["", "0x", "0x00abff7", "0x00abff7f00", "00abffxx", "0x0x00ab", "+00abff7"] {
            assert_eq!(read_array::<4>(wrong), None, "{wrong}");
        }
        let mut out = vec![1];
        assert!(read("0x", &mut out) && out.is_empty());
        put(&mut out, &[0, 0xab]);
        assert_eq!((&out[..], text(&[0, 0xab])), (&b"\"0x00ab\""[..], "0x00ab".into()));
    }
}
