//! The progress of a file that takes long to write. If the program is ended, the next run with the
//! same flags continues where the last checkpoint was.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::Context as _;

/// A checkpoint: everything up to this point is on the disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct WrittenPart {
    /// Size of the incomplete file in bytes.
    pub(crate) disk_bytes: u64,
    /// Number of events in the file.
    pub(crate) events: u64,
    /// Size of the events in bytes, without compression.
    pub(crate) text_bytes: u64,
}

/// The file that has the last checkpoint of an incomplete file.
pub(crate) struct FileProgress {
    path: PathBuf,
    /// The flags that decide the bytes of the incomplete file.
    flags: String,
}

impl FileProgress {
    /// The progress of the incomplete file `part`.
    pub(crate) fn new(part: &Path, flags: String) -> Self {
        let mut path = part.as_os_str().to_owned();
        path.push(".progress");
        Self { path: path.into(), flags }
    }

    /// Returns the last checkpoint of a run with the same flags. If there is no checkpoint, or the
    /// incomplete file is shorter, returns the start of the file.
    pub(crate) fn read(&self, part: &Path) -> WrittenPart {
        let read = || -> Option<WrittenPart> {
            let text = fs::read_to_string(&self.path).ok()?;
            let (flags, numbers) = text.trim_end().rsplit_once('\n')?;
            let mut numbers = numbers.split(' ').map(|number| number.parse::<u64>().ok());
            let mut next = || numbers.next().flatten();
            let written = WrittenPart { disk_bytes: next()?, events: next()?, text_bytes: next()? };
            let is_there = fs::metadata(part).ok()?.len() >= written.disk_bytes;
            (flags == self.flags && is_there).then_some(written)
        };
        read().unwrap_or_default()
    }

    /// Saves a checkpoint. The bytes before the checkpoint must be on the disk.
    pub(crate) fn save(&self, written: WrittenPart) -> anyhow::Result<()> {
        let WrittenPart { disk_bytes, events, text_bytes } = written;
        let mut next = self.path.as_os_str().to_owned();
        next.push(".new");
        let next = Path::new(&next);
        let text = format!("{}\n{disk_bytes} {events} {text_bytes}\n", self.flags);
        let save = || {
            fs::write(next, text)?;
            File::open(next)?.sync_all()?;
            fs::rename(next, &self.path)
        };
        save().with_context(|| format!("{} could not be written", self.path.display()))
    }

    /// Removes the checkpoint, once the file is complete.
    pub(crate) fn remove(&self) {
        // A small file has no checkpoint to remove.
        let _ = fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_run_with_the_same_flags_continues() {
        let part = std::env::temp_dir().join(format!("hark-progress-{}", std::process::id()));
        let progress = FileProgress::new(&part, "7 true".into());
        assert_eq!(progress.read(&part), WrittenPart::default());
        let written = WrittenPart { disk_bytes: 4, events: 2, text_bytes: 9 };
        fs::write(&part, "1234").unwrap();
        progress.save(written).unwrap();
        assert_eq!(progress.read(&part), written);
        assert_eq!(FileProgress::new(&part, "8 true".into()).read(&part), WrittenPart::default());
        fs::write(&part, "123").unwrap();
        assert_eq!(progress.read(&part), WrittenPart::default());
        progress.remove();
        assert!(!progress.path.exists());
        fs::remove_file(part).unwrap();
    }
}
