//! Creates a whole archive for a command, and commits the result.

use std::path::Path;

use anyhow::Context as _;
use hark_store_embedded::disk::{Disk as _, RealDisk};

/// A command that creates a whole archive. The command builds the archive in a separate directory
/// within the archive's directory. Once all files are durable, the separate directory is renamed,
/// which commits the result. Then the content of the separate directory is moved to the archive's
/// directory. While one of the two names exists, no other command opens the archive.
pub(crate) struct Making {
    pub(crate) command: &'static str,
    /// Name of the directory while the archive is incomplete.
    pub(crate) unfinished: &'static str,
    /// Name of the directory once the archive is complete.
    pub(crate) finished: &'static str,
}

pub(crate) const RESTORE: Making =
    Making { command: "restore", unfinished: "restoring", finished: "restored" };
pub(crate) const SALVAGE: Making =
    Making { command: "salvage", unfinished: "salvaging", finished: "salvaged" };

impl Making {
    /// Commits the archive that was built in `data`, and moves it into its final place.
    pub(crate) fn finish(&self, data: &Path) -> anyhow::Result<()> {
        let (unfinished, finished) = (data.join(self.unfinished), data.join(self.finished));
        if !finished.exists() {
            std::fs::rename(&unfinished, &finished)
                .and_then(|()| RealDisk.sync_dir(data))
                .with_context(|| format!("{} could not be renamed", unfinished.display()))?;
        }
        move_all(&finished, data).with_context(|| {
            format!("{} could not be moved to its place; run the command again", finished.display())
        })
    }
}

/// Moves the content of `from` into `data`, and removes `from`.
fn move_all(from: &Path, data: &Path) -> std::io::Result<()> {
    // A symbolic link made by a service's user could lead to any directory of this machine.
    if !from.symlink_metadata()?.is_dir() {
        return Err(std::io::Error::other("it is no directory, but a link or a file"));
    }
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        std::fs::rename(entry.path(), data.join(entry.file_name()))?;
    }
    RealDisk.sync_dir(data)?;
    std::fs::remove_dir(from)?;
    RealDisk.sync_dir(data)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use hark_testkit::disk::scratch;

    use super::*;

    #[test]
    fn no_archive_is_moved_into_place_through_a_symbolic_link() {
        let folder = scratch("finished");
        let (data, elsewhere) = (folder.join("data"), folder.join("elsewhere"));
        for dir in [&data, &elsewhere] {
            std::fs::create_dir_all(dir).unwrap();
        }
        std::fs::write(elsewhere.join("file"), "").unwrap();
        let finished = data.join(RESTORE.finished);
        for name in [RESTORE.unfinished, RESTORE.finished] {
            symlink(&elsewhere, data.join(name)).unwrap();
            let refusal = format!("{:#}", RESTORE.finish(&data).unwrap_err());
            assert!(refusal.contains("it is no directory, but a link"), "{name}: {refusal}");
            assert!(elsewhere.join("file").exists() && !data.join("file").exists(), "{name}");
            // `finish` has renamed the unfinished directory, so the link has the finished name in
            // both rounds.
            std::fs::remove_file(&finished).unwrap();
        }
        std::fs::rename(&elsewhere, &finished).unwrap();
        RESTORE.finish(&data).unwrap();
        assert!(data.join("file").exists() && !finished.exists());
        std::fs::remove_dir_all(folder).unwrap();
    }
}
