//! The directory of a run. A shell waits for the end of this process. The shell then ends all
//! processes of the run and removes the directory, even after Ctrl-C or `kill -9`.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::Context as _;

/// The shell script that waits for the end of its input, and then cleans up. The system reuses
/// process ids, so a process is ended only if its command line names the directory.
const GUARD: &str = r#"
trap '' INT TERM HUP
read -r _
ours() { grep -qaF "$dir" "/proc/$1/cmdline" 2>/dev/null; }
dir=$1
while read -r signal pid; do
    if ours "$pid"; then kill "-$signal" "$pid"; fi
done < "$dir/processes"
while read -r _ pid; do
    tries=0
    while ours "$pid" && [ "$tries" -lt 100 ]; do
        sleep 0.1
        tries=$((tries + 1))
    done
    if ours "$pid"; then kill -KILL "$pid"; fi
done < "$dir/processes"
while read -r group; do
    rmdir "$group"
done < "$dir/groups"
rm -rf "$dir"
"#;

/// The directory of a run. Dropping the value ends the processes and removes the directory.
pub(in crate::cases) struct RunDirectory {
    path: PathBuf,
    guard: Child,
}

impl RunDirectory {
    /// Makes the directory in the system's directory for temporary files.
    pub(in crate::cases) fn new() -> anyhow::Result<Self> {
        let name = format!("hark-bench-cases-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let make = || {
            fs::create_dir(&path)?;
            File::create(path.join("processes"))?;
            File::create(path.join("groups"))?;
            let mut guard = Command::new("sh");
            guard.args(["-c", GUARD, "guard"]).arg(&path).stdin(Stdio::piped());
            guard.stdout(Stdio::null()).stderr(Stdio::null());
            // Ctrl-C must not end the shell before its work is done.
            guard.process_group(0).spawn()
        };
        let guard = make().with_context(|| {
            format!("the directory {} could not be made for the servers", path.display())
        })?;
        Ok(Self { path, guard })
    }

    pub(in crate::cases) fn path(&self) -> &Path {
        &self.path
    }

    /// Records a process and its termination signal. The process's command line must name the
    /// directory.
    pub(super) fn remember_process(&self, signal: &str, process: u32) -> anyhow::Result<()> {
        self.append("processes", &format!("{signal} {process}\n"))
    }

    /// Records a control group, which is removed when all processes have ended.
    pub(super) fn remember_group(&self, group: &Path) -> anyhow::Result<()> {
        self.append("groups", &format!("{}\n", group.display()))
    }

    fn append(&self, list: &str, line: &str) -> anyhow::Result<()> {
        let file = File::options().append(true).open(self.path.join(list));
        let written = file.and_then(|mut file| file.write_all(line.as_bytes()));
        written.with_context(|| format!("{} could not be written", self.path.display()))
    }
}

impl Drop for RunDirectory {
    fn drop(&mut self) {
        // The guard cleans up when its input ends.
        drop(self.guard.stdin.take());
        let _ = self.guard.wait();
    }
}
