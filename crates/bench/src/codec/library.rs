//! A library to measure.

use super::messages::CodecCase;
use super::meter::CodecMeter;
use crate::report::Column;

/// A library to measure.
pub struct Library {
    /// The column of the library's times.
    pub ns: Column,
    /// The column of the library's allocations.
    pub allocations: Column,
    /// The column of the ratio of Hark's time to this library's.
    pub ratio: Column,
    /// Measures each operation that the library has, on the messages of a case.
    pub measure: fn(&CodecCase, &mut CodecMeter) -> anyhow::Result<()>,
}
