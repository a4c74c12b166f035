//! Errors of negentropy messages.

/// Why bytes are not a valid negentropy message, or why the comparison cannot continue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NegentropyError {
    /// The bytes end too early.
    #[error("the comparison message is cut short")]
    Short,
    /// A number has leading zeros or more than 64 bits.
    #[error("the comparison message has a number that is too large or too long")]
    Number,
    /// The first byte is not a protocol version.
    #[error("the comparison message begins with {0:#04x}, which is not a protocol version")]
    NoVersion(u8),
    /// The peer supports only this version, which is not the version of this code.
    #[error("the other side of the comparison speaks only version {0:#04x}")]
    Version(u8),
    /// A prefix of an id has more than 32 bytes.
    #[error("the comparison message has a bound of more than 32 bytes")]
    Prefix,
    /// An unknown mode.
    #[error("the comparison message has a range of unknown mode {0}")]
    Mode(u64),
    /// A bound comes before the previous bound.
    #[error("the comparison message has ranges that are not in order")]
    Order,
}
