//! The condition on the labels of a record.

use hark_codec::record::Record;

/// The condition that a record has this label with any of these values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LabelSet {
    /// The label's name.
    pub name: u8,
    /// The accepted values. An empty list accepts none.
    pub values: Vec<Box<[u8]>>,
}

impl LabelSet {
    /// Makes a condition with one accepted value.
    pub fn one(name: u8, value: &[u8]) -> Self {
        Self { name, values: vec![value.into()] }
    }
}

/// Returns whether a record has a label with this name and value.
#[inline]
pub(super) fn has_label(record: &Record<'_>, name: u8, value: &[u8]) -> bool {
    record.labels().any(|label| label == (name, value))
}

/// Returns whether a label of `record` is in `set`, whose values are ascending.
#[inline]
pub(super) fn carries(record: &Record<'_>, set: &LabelSet) -> bool {
    match set.values.as_slice() {
        [] => false,
        [one] => has_label(record, set.name, one),
        many => record.labels().any(|(name, value)| name == set.name && among(many, value)),
    }
}

/// Returns whether `sorted` contains `value`. Nearly all values differ in their first eight bytes,
/// so whole values are compared only if these bytes are equal. Thousands of values may have equal
/// first bytes.
#[inline]
fn among(sorted: &[Box<[u8]>], value: &[u8]) -> bool {
    fn first(value: &[u8]) -> u64 {
        match value.first_chunk() {
            Some(eight) => u64::from_be_bytes(*eight),
            None => value
                .iter()
                .enumerate()
                .fold(0, |all, (at, &byte)| all | u64::from(byte) << (56 - 8 * at)),
        }
    }
    let wanted = first(value);
    let start = sorted.partition_point(|other| first(other) < wanted);
    sorted[start..].first().is_some_and(|other| first(other) == wanted)
        && sorted[start..].binary_search_by(|other| (**other).cmp(value)).is_ok()
}
