//! The values of a label, counted by reading records.

use hark_codec::record::Record;

/// Returns each value of label `name` in these records, ascending, with the number of records that
/// have the value. Uses 24 bytes of memory per label.
pub fn count<'a>(records: impl Iterator<Item = Record<'a>>, name: u8) -> Vec<(&'a [u8], u64)> {
    let mut all = Vec::new();
    for record in records {
        let start = all.len();
        all.extend(record.labels().filter(|(other, _)| *other == name).map(|(_, value)| value));
        all[start..].sort_unstable();
        // A record may have a label more than once.
        let mut kept = start;
        for at in start..all.len() {
            if at == start || all[at] != all[kept - 1] {
                all[kept] = all[at];
                kept += 1;
            }
        }
        all.truncate(kept);
    }
    all.sort_unstable();
    all.chunk_by(|a, b| a == b).map(|equal| (equal[0], equal.len() as u64)).collect()
}

#[cfg(test)]
mod tests {
    use hark_codec::record::{self, LabelPosition, RecordHeader};

    use super::*;

    #[test]
    fn a_record_counts_once_for_a_value() {
        let record = |labels: &[(u8, &[u8])]| {
            let head = RecordHeader { id: [0; 32], time: 0, author: None, kind: 0, expires: None };
            let mut bytes = Vec::new();
            let places = labels.iter().map(|&(name, value)| (name, LabelPosition::Bytes(value)));
            record::write(&mut bytes, &head, b"", places);
            bytes
        };
        let all = [
            record(&[(b't', b"b"), (b't', b"a"), (b't', b"b")]),
            record(&[(b'u', b"a"), (b't', b"")]),
            record(&[]),
            record(&[(b't', b"a")]),
        ];
        let views = || all.iter().map(|bytes| Record::new(bytes).unwrap());
        assert_eq!(count(views(), b't'), [(&b""[..], 1), (b"a", 2), (b"b", 1)]);
        assert_eq!(count(views(), b'x'), []);
    }
}
