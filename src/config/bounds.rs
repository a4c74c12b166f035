//! The maxima that several numbers of the configuration have in common. Bounds are chosen so that
//! no value overflows, panics, waits without end or allocates memory without need. Within these
//! bounds, the operator decides which value makes sense.

/// The maximum of counts that need no particular bound.
pub(super) const ANY: u64 = 1_000_000_000_000;
/// The maximum of byte counts: a tebibyte.
pub(super) const BYTES: u64 = 1 << 40;
/// Maximum bytes of an event or a message. A record may be twice as long, because of labels that do
/// not occur literally in the message, and still fits the store.
pub(super) const MESSAGE: u64 = 16 << 20;
/// A hundred years.
pub(super) const SECONDS: u64 = 100 * 365 * 86_400;
pub(super) const MILLISECONDS: u64 = SECONDS * 1_000;
/// A hundred years. This length in nanoseconds still fits the database's integers.
pub(super) const DAYS: u64 = 36_500;
pub(super) const THREADS: u64 = 256;
