//! The section with the values of the labels that a segment lists. Posting lists are found by
//! hashes of values, and a hash does not reveal its value, so this section lists the values.
//! docs/format.md describes the section.

use hark_archive::Record;

use crate::term::TermHasher;

/// The name of a label and a value.
pub type Value<'a> = (u8, &'a [u8]);

/// Size of an entry without its value, in bytes.
const ENTRY: usize = 5;

/// Returns the first bytes of the section: the names of the listed labels.
pub fn header(names: &[u8]) -> impl Iterator<Item = u8> {
    std::iter::once(names.len() as u8).chain(names.iter().copied())
}

/// Returns the first bytes of an entry; the value follows.
pub fn entry((name, value): Value<'_>) -> [u8; ENTRY] {
    let [a, b, c, d] = (value.len() as u32).to_le_bytes();
    [name, a, b, c, d]
}

/// Returns the size of a section with these values, in bytes.
pub fn bytes(names: &[u8], values: &[Value<'_>]) -> u64 {
    let values = values.iter().map(|(_, value)| (ENTRY + value.len()) as u64);
    1 + names.len() as u64 + values.sum::<u64>()
}

/// Returns the values that listed labels have in these records, ascending without duplicates.
pub fn of<'a>(records: impl Iterator<Item = Record<'a>>, terms: &TermHasher) -> Vec<Value<'a>> {
    if terms.labels().is_empty() {
        return Vec::new();
    }
    let is_listed = |(name, _): &Value<'_>| terms.labels().contains(name);
    let labels = records.flat_map(|record| record.labels());
    let mut all: Vec<Value<'a>> = labels.filter(is_listed).collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// Divides a section into the names of its labels and the values.
pub fn open(section: &[u8]) -> (&[u8], Values<'_>) {
    let parts = section.split_first().and_then(|(len, rest)| rest.split_at_checked((*len).into()));
    let (names, rest) = parts.unwrap_or_default();
    (names, Values(rest))
}

/// The values of a section, ascending. If a part of the section is damaged, the iteration ends
/// there.
pub struct Values<'a>(&'a [u8]);

impl<'a> Iterator for Values<'a> {
    type Item = Value<'a>;

    fn next(&mut self) -> Option<Value<'a>> {
        let ([name, len @ ..], rest) = self.0.split_first_chunk::<ENTRY>()?;
        let (value, rest) = rest.split_at_checked(u32::from_le_bytes(*len) as usize)?;
        self.0 = rest;
        Some((*name, value))
    }
}

impl Values<'_> {
    /// Whether the section ends after the last returned value.
    pub fn is_at_end(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_come_back_and_a_cut_section_ends_early() {
        let long = vec![7; 70_000];
        let values = [(b't', &b""[..]), (b't', b"topic"), (b'u', &long)];
        let mut section: Vec<u8> = header(b"tu").collect();
        for value in values {
            section.extend_from_slice(&entry(value));
            section.extend_from_slice(value.1);
        }
        assert_eq!(section.len() as u64, bytes(b"tu", &values));
        let (names, mut found) = open(&section);
        assert_eq!(names, b"tu");
        assert_eq!(found.by_ref().collect::<Vec<_>>(), values);
        assert!(found.is_at_end());
        for cut in [0, 1, 2, 5, 8, 9, 13, section.len() - 1] {
            let (_, mut found) = open(&section[..cut]);
            assert!(found.by_ref().count() < values.len(), "{cut}");
        }
        assert_eq!(open(&[]).0, b"");
    }
}
