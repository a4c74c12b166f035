//! One process of a plugin.

use std::io;
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use hark_codec::record::Id;
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::timeout;

use crate::answer::{self, PluginDecision, shortened};
use crate::command::PluginCommand;
use crate::failure::PluginFailure;
use crate::log::PluginLog;

/// Maximum length of an answer, and of all output that is skipped before an answer, in bytes.
const OUTPUT_BYTES_MAX: u64 = 64 << 10;
/// How long to wait for the exit of a process that no longer reads or writes, so that its exit code
/// can be reported.
const EXIT_WITHIN: Duration = Duration::from_millis(100);
/// How long a process may run after it was told to end.
const END_WITHIN: Duration = Duration::from_secs(1);
/// Environment variables that systemd sets only for the server. Plugins do not inherit these variables.
const OF_SERVICE: [&str; 6] = [
    "NOTIFY_SOCKET",
    "WATCHDOG_USEC",
    "WATCHDOG_PID",
    "LISTEN_FDS",
    "LISTEN_PID",
    "LISTEN_FDNAMES",
];

/// A running process, which is killed with all its children when this value is dropped.
#[derive(Debug)]
pub struct PluginProcess {
    child: Child,
    /// The group of the process and its children. Its number is not reused before this value is
    /// dropped, since only this value waits for the process.
    group: Option<Pid>,
    to: Option<ChildStdin>,
    from: BufReader<ChildStdout>,
    command: PluginCommand,
    modified: Option<SystemTime>,
}

impl PluginProcess {
    /// Starts a process. The new process inherits no file and no socket: all files of the calling
    /// process are closed when the shell starts.
    pub fn start(command: &PluginCommand, log: &Arc<PluginLog>) -> Result<Self, PluginFailure> {
        let failed = |error: io::Error| PluginFailure::Start(error.to_string());
        // The time is read first, so that a change during the start is noticed.
        let modified = command.modified();
        let mut shell = Command::new("/bin/sh");
        shell
            .args(["-c", &command.line])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // Ctrl-C in a terminal must not end the plugin before the server.
            .process_group(0)
            .kill_on_drop(true);
        for name in OF_SERVICE {
            shell.env_remove(name);
        }
        if let Some(folder) =
            command.folder.as_ref().filter(|folder| !folder.as_os_str().is_empty())
        {
            shell.current_dir(folder);
        }
        let mut child = shell.spawn().map_err(failed)?;
        if let Some(stderr) = child.stderr.take() {
            tokio::spawn(Arc::clone(log).follow(stderr));
        }
        let (Some(to), Some(from)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(PluginFailure::Start("it has no stdin or stdout".into()));
        };
        let group = child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
        let (to, from) = (Some(to), BufReader::new(from));
        Ok(Self { child, group, to, from, command: command.clone(), modified })
    }

    /// Whether the process must be replaced before the next event: it has ended, or the plugin's
    /// file was changed since its start.
    pub fn is_outdated(&mut self) -> bool {
        let modified = self.command.modified();
        let is_changed = modified.is_some() && modified != self.modified;
        is_changed || !matches!(self.child.try_wait(), Ok(None))
    }

    /// Asks the plugin about the event `id`. `question` is a line of [`crate::question::line`]. The
    /// caller bounds the time. After a failure, or if the caller no longer waits, the process must
    /// not be asked again.
    pub async fn ask(&mut self, id: &Id, question: &[u8]) -> Result<PluginDecision, PluginFailure> {
        let exchanged = self.exchange(id, question).await;
        match exchanged {
            Ok(decided) => decided,
            Err(error) => Err(self.ended(&error).await),
        }
    }

    async fn exchange(
        &mut self,
        id: &Id,
        question: &[u8],
    ) -> io::Result<Result<PluginDecision, PluginFailure>> {
        if let Some(to) = &mut self.to {
            to.write_all(question).await?;
            to.flush().await?;
        }
        let (mut left, mut line, mut skipped) = (OUTPUT_BYTES_MAX, Vec::new(), None);
        loop {
            line.clear();
            let read = (&mut self.from).take(left).read_until(b'\n', &mut line).await?;
            left -= read as u64;
            if let Some(decided) = answer::parse(&line, id) {
                return Ok(decided);
            }
            let is_blank = line.trim_ascii().is_empty();
            if !is_blank {
                skipped = Some(shortened(&String::from_utf8_lossy(&line)));
            }
            match skipped {
                Some(text) if read == 0 || left == 0 => {
                    return Ok(Err(PluginFailure::Garbage(text)));
                }
                None if read == 0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                None if left == 0 => {
                    return Ok(Err(PluginFailure::Garbage("too many blank lines".into())));
                }
                _ => {}
            }
        }
    }

    /// Describes why the process no longer reads or writes.
    async fn ended(&mut self, error: &io::Error) -> PluginFailure {
        PluginFailure::Ended(match timeout(EXIT_WITHIN, self.child.wait()).await {
            Ok(Ok(status)) => status.to_string(),
            _ => error.to_string(),
        })
    }

    /// Ends the process: its stdin is closed and SIGTERM is sent. A process that still runs after a
    /// second is killed.
    pub async fn end(mut self) {
        drop(self.to.take());
        self.signal(Signal::TERM);
        // Either way, dropping the value kills all processes that are left.
        let _ = timeout(END_WITHIN, self.child.wait()).await;
    }

    /// Sends a signal to the process and its children.
    fn signal(&self, signal: Signal) {
        if let Some(group) = self.group {
            // Fails if all of them have ended.
            let _ = kill_process_group(group, signal);
        }
    }
}

impl Drop for PluginProcess {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
    }
}
