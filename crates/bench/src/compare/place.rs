//! The directories of a comparison. A shell waits for the end of this process. The shell then ends
//! all processes that were started for the comparison, even after Ctrl-C or `kill -9`.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, bail};

/// The variable in the environment of all processes of a comparison. Its value is the directory.
pub(super) const MARK: &str = "BENCH_COMPARE_RUN";

/// The script that waits for the end of its input, and then ends the processes of the comparison.
const GUARD: &str = r#"
trap '' INT TERM HUP
read -r _
for file in /proc/[0-9]*/environ; do
    if grep -qazxF "$1" "$file" 2>/dev/null; then
        process=${file#/proc/}
        kill -KILL "${process%/environ}" 2>/dev/null
    fi
done
[ -z "$2" ] || rm -rf "$2"
"#;

/// The directory of a comparison. Dropping the value ends all its processes, and removes the
/// directory if it is temporary.
pub(super) struct ComparePlace {
    path: PathBuf,
    guard: Child,
}

impl ComparePlace {
    /// Makes the directory in `work`, or a temporary directory.
    pub(super) fn new(work: Option<&Path>) -> anyhow::Result<Self> {
        let temporary = format!("hark-bench-compare-{}", std::process::id());
        let path = work.map_or_else(|| std::env::temp_dir().join(temporary), Path::to_owned);
        fs::create_dir_all(&path)
            .with_context(|| format!("{} could not be made", path.display()))?;
        let path = fs::canonicalize(path)?;
        let removed = if work.is_none() { path.as_path() } else { Path::new("") };
        let mut guard = Command::new("sh");
        guard.args(["-c", GUARD, "guard"]).arg(mark(&path)).arg(removed).stdin(Stdio::piped());
        // Ctrl-C must not end the shell before its work is done.
        guard.stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        let guard = guard.spawn().context("no shell could be started")?;
        Ok(Self { path, guard })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Makes the directory of the relay with this number, without earlier files.
    pub(super) fn relay(&self, number: usize) -> anyhow::Result<PathBuf> {
        let path = self.path.join("hark-bench-relays").join(number.to_string());
        let make = || {
            if path.exists() {
                fs::remove_dir_all(&path)?;
            }
            fs::create_dir_all(&path)
        };
        make().with_context(|| format!("{} could not be emptied", path.display()))?;
        Ok(path)
    }
}

impl Drop for ComparePlace {
    fn drop(&mut self) {
        // The guard cleans up when its input ends.
        drop(self.guard.stdin.take());
        let _ = self.guard.wait();
        // The directory may be in a place that the caller has given.
        let _ = fs::remove_dir_all(self.path.join("hark-bench-relays"));
    }
}

/// The entry in the environment of the processes of a comparison.
fn mark(path: &Path) -> String {
    format!("{MARK}={}", path.display())
}

/// Empties a directory that the file of relays names. A directory with files is emptied only if an
/// earlier comparison has found the directory empty, and has put a marker file beside the
/// directory.
pub(super) fn empty(data: &Path) -> anyhow::Result<()> {
    let mut marker = data.as_os_str().to_owned();
    marker.push(".emptied-by-hark-bench");
    let marker = Path::new(&marker);
    let is_empty = !data.exists() || fs::read_dir(data)?.next().is_none();
    if !is_empty && !marker.exists() {
        bail!(
            "{} has files that no comparison has made. Name another directory, or remove the files",
            data.display()
        );
    }
    let make = || {
        if data.exists() {
            fs::remove_dir_all(data)?;
        }
        fs::create_dir_all(data)?;
        fs::write(marker, "hark bench compare empties the directory beside this file\n")
    };
    make().with_context(|| format!("{} could not be emptied", data.display()))
}

/// Returns the space on disk that all files of a directory take, in bytes. Files may disappear
/// meanwhile.
pub(super) fn disk_bytes(path: &Path) -> u64 {
    let Ok(about) = fs::symlink_metadata(path) else { return 0 };
    let below = fs::read_dir(path).into_iter().flatten().flatten();
    let below: u64 =
        if about.is_dir() { below.map(|entry| disk_bytes(&entry.path())).sum() } else { 0 };
    about.blocks() * 512 + below
}

/// Returns the type of the file system that holds a directory, such as `ext4`.
pub(super) fn file_system(path: &Path) -> String {
    let mounts = fs::read_to_string("/proc/mounts").unwrap_or_default();
    let found = mounts.lines().filter_map(|line| {
        let mut fields = line.split(' ').skip(1);
        let (at, kind) = (fields.next()?, fields.next()?);
        path.starts_with(at).then_some((at.len(), kind))
    });
    found
        .max_by_key(|(length, _)| *length)
        .map_or_else(|| "unknown".into(), |(_, kind)| kind.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_directories_of_earlier_comparisons_are_emptied() {
        let root = std::env::temp_dir().join(format!("hark-emptied-{}", std::process::id()));
        let data = root.join("data");
        empty(&data).unwrap();
        fs::write(data.join("events"), vec![1; 10_000]).unwrap();
        assert!(disk_bytes(&data) >= 10_000);
        empty(&data).unwrap();
        assert!(fs::read_dir(&data).unwrap().next().is_none());
        let photos = root.join("photos");
        fs::create_dir(&photos).unwrap();
        fs::write(photos.join("child.jpg"), "x").unwrap();
        assert!(empty(&photos).unwrap_err().to_string().contains("no comparison has made"));
        assert!(photos.join("child.jpg").exists());
        fs::remove_dir_all(root).unwrap();
        assert_ne!(file_system(Path::new("/proc/self")), "unknown");
    }
}
