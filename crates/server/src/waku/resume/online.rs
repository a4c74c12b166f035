//! The small file with the time up to which no message was missed.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;

use crate::key_file;

/// The content of the file: one line with the time and the shards.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct OnlineNote {
    /// The time up to which no message was missed, in ns.
    pub(super) time_ns: u64,
    /// The shards that peers relayed until then. The time advances only while peers relay all of
    /// these shards.
    pub(super) shards: BTreeSet<u16>,
}

impl OnlineNote {
    /// Reads the file. A missing or malformed file promises no messages.
    pub(super) fn read(file: &Path) -> Self {
        let text = std::fs::read_to_string(file).unwrap_or_default();
        let mut words = text.split_whitespace();
        let Some(time_ns) = words.next().and_then(|time| time.parse().ok()) else {
            return Self::default();
        };
        Self { time_ns, shards: words.filter_map(|shard| shard.parse().ok()).collect() }
    }

    /// Replaces the file.
    pub(super) fn write(&self, file: &Path) -> io::Result<()> {
        let time = std::iter::once(self.time_ns.to_string());
        let words: Vec<_> = time.chain(self.shards.iter().map(u16::to_string)).collect();
        key_file::replace(file, format!("{}\n", words.join(" ")).as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use hark_testkit::disk::scratch;

    use super::*;

    #[test]
    fn a_note_is_read_as_it_was_written() {
        let folder = scratch("online");
        std::fs::create_dir(&folder).unwrap();
        let file = folder.join("waku.online");
        assert_eq!(OnlineNote::read(&file), OnlineNote::default());
        for shards in [BTreeSet::new(), BTreeSet::from([0, 7, 65_535])] {
            let note = OnlineNote { time_ns: 1_700_000_000_000_000_000, shards };
            note.write(&file).unwrap();
            assert_eq!(OnlineNote::read(&file), note);
        }
        for (text, time_ns, shards) in
            [("", 0, &[][..]), ("7", 7, &[]), ("7 1 x 2\n", 7, &[1, 2]), ("x 1", 0, &[])]
        {
            std::fs::write(&file, text).unwrap();
            let shards = shards.iter().copied().collect();
            assert_eq!(OnlineNote::read(&file), OnlineNote { time_ns, shards }, "{text:?}");
        }
        std::fs::remove_dir_all(folder).unwrap();
    }
}
