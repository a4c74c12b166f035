//! Writes a number as digits to the base 128.

/// Returns the digits of `value` to the base 128, at the end of an array of ten, and the number of
/// digits.
#[inline]
pub(super) fn number(mut value: u64) -> ([u8; 10], usize) {
    let (mut digits, mut len) = ([0; 10], 0);
    for digit in digits.iter_mut().rev() {
        *digit = value as u8 & 0x7f | if len == 0 { 0 } else { 0x80 };
        len += 1;
        value >>= 7;
        if value == 0 {
            break;
        }
    }
    (digits, len)
}
