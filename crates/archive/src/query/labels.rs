//! The condition that a record has at least one of several labels.

use hark_codec::record::Record;

/// The condition that a record has a label with this name and any of these values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LabelSet {
    /// The label's name.
    pub name: u8,
    /// The accepted values. With an empty list, no record meets the condition.
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

/// Returns whether `record` has a label of `set`. The values of `set` must ascend.
#[inline]
pub(super) fn carries(record: &Record<'_>, set: &LabelSet) -> bool {
    match set.values.as_slice() {
        [] => false,
        [one] => has_label(record, set.name, one),
        many => record.labels().any(|(name, value)| name == set.name && among(many, value)),
    }
}

/// Returns whether `sorted` contains `value`. Nearly all values differ in their first eight bytes,
/// so whole values are compared only if these bytes are equal. A client may send thousands of
/// values with the same first eight bytes, so these values are searched by binary search.
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
