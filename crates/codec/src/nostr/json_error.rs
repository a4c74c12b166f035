//! Errors of JSON and of its numbers.

/// Maximum depth of nesting in unknown fields. Known fields have a fixed structure and need no such
/// maximum.
pub(crate) const DEPTH_MAX: u32 = 32;

/// Why bytes are not valid JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JsonError {
    /// Not UTF-8.
    #[error("not valid UTF-8")]
    Utf8,
    /// 2 GiB or longer.
    #[error("too long")]
    TooLong,
    /// The text does not continue as expected.
    #[error("not valid JSON: {wanted} expected at byte {at}")]
    Expected {
        /// The expected text.
        wanted: &'static str,
        /// Offset in bytes.
        at: u32,
    },
    /// A raw control character within a string.
    #[error("not valid JSON: control character in a string at byte {0}, escape it as \\u00xx")]
    Control(u32),
    /// A backslash that does not start a known escape.
    #[error("not valid JSON: unknown escape at byte {0}")]
    Escape(u32),
    /// One half of a surrogate pair without the other half.
    #[error("not valid Unicode: half of a surrogate pair at byte {0}")]
    Surrogate(u32),
    /// Nested too deeply.
    #[error("nested deeper than {DEPTH_MAX} levels")]
    Depth,
    /// Something follows the end of the message.
    #[error("not valid JSON: something follows at byte {0} where the message should end")]
    Trailing(u32),
}

/// Why a number is not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NumberError {
    /// Not a number.
    #[error("is not a number")]
    NoNumber,
    /// Below zero.
    #[error("is negative")]
    Negative,
    /// The number has a fraction or an exponent.
    #[error("is not written as a whole number")]
    NotWhole,
    /// The number needs more than 64 bits, or is above the maximum of the field.
    #[error("is too large")]
    TooLarge,
}
