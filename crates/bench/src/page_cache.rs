//! The page cache of the machine, which is emptied so that a server reads files from the disk.

use std::path::Path;

use anyhow::Context as _;

/// The file by which Linux drops caches: a number is written to this file.
const DROP_CACHES: &str = "/proc/sys/vm/drop_caches";

/// Drops the pages of files, and cached folders and inodes. Pages that a process has mapped stay.
pub(crate) fn drop_caches() -> anyhow::Result<()> {
    drop_by(Path::new(DROP_CACHES))
}

fn drop_by(file: &Path) -> anyhow::Result<()> {
    // Pages that are not written to the disk yet cannot be dropped.
    let synced = std::process::Command::new("sync").status();
    synced.context("`sync` could not be run")?;
    std::fs::OpenOptions::new()
        .write(true)
        .open(file)
        .and_then(|mut file| std::io::Write::write_all(&mut file, b"3\n"))
        .with_context(|| format!("{} could not be written, which only root may", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_written_or_the_reason_is_given() {
        let file = std::env::temp_dir().join(format!("hark-caches-{}", std::process::id()));
        let error = drop_by(&file).unwrap_err().to_string();
        assert!(error.contains("only root"), "{error}");
        std::fs::write(&file, "").unwrap();
        drop_by(&file).unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "3\n");
        std::fs::remove_file(file).unwrap();
    }
}
