//! Maxima that several numbers of the configuration share. Bounds are chosen so that no value
//! causes an overflow, a panic, an endless wait or a needless allocation. Within these bounds, the
//! operator decides which value makes sense.

/// The maximum of counts that need no particular bound.
pub(super) const ANY: u64 = 1_000_000_000_000;
/// The maximum of byte counts: a tebibyte.
pub(super) const BYTES: u64 = 1 << 40;
/// Maximum number of bytes of an event or a message. The record may be twice as long, because of
/// labels that do not occur literally in the message; the store accepts this length.
pub(super) const MESSAGE: u64 = 16 << 20;
/// A hundred years.
pub(super) const SECONDS: u64 = 100 * 365 * 86_400;
pub(super) const MILLISECONDS: u64 = SECONDS * 1_000;
/// A hundred years. This length in nanoseconds still fits the database's integers.
pub(super) const DAYS: u64 = 36_500;
pub(super) const THREADS: u64 = 256;
