//! Runs Hark's binary in tests and captures its log. If the log contains a panic, the test fails,
//! whatever the test checks.
//!
//! Otherwise the panic of a detached task could go unnoticed: the task ends, the client gets an
//! empty answer, and a test that checks something else passes.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::ops::{Deref, DerefMut};
use std::os::unix::fs::FileExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use serde_json::Value;

use crate::wait;

/// Text that the standard library writes when a thread panics.
const PANIC: &str = "panicked at";
/// Number of lines of a log that are shown when a test fails.
const SHOWN: usize = 30;

/// Panics if a program's log contains a panic.
pub fn assert_no_panic(log: &str) {
    let Some(at) = log.lines().position(|line| line.contains(PANIC)) else { return };
    let around: Vec<&str> = log.lines().skip(at.saturating_sub(2)).take(SHOWN).collect();
    let around = around.join("\n");
    if std::thread::panicking() {
        // If this thread is already panicking, a second panic would hide the first.
        eprintln!("a panic is in the log:\n{around}");
    } else {
        panic!("a panic is in the log:\n{around}");
    }
}

/// A command that runs the binary with empty input, without the environment variables and the
/// configuration of another Hark on this machine.
#[derive(Debug)]
pub struct Program {
    command: Command,
    log: Option<File>,
    is_deaf: bool,
}

impl Program {
    /// A command without arguments.
    pub fn new(binary: impl AsRef<OsStr>) -> Self {
        let mut command = Command::new(binary);
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("HARK_") {
                command.env_remove(name);
            }
        }
        command.env("HARK_CONFIG", "").stdin(Stdio::null());
        Self { command, log: None, is_deaf: false }
    }

    /// Adds an argument.
    pub fn arg(&mut self, arg: impl AsRef<OsStr>) -> &mut Self {
        self.command.arg(arg);
        self
    }

    /// Adds arguments.
    pub fn args<A: AsRef<OsStr>>(&mut self, args: impl IntoIterator<Item = A>) -> &mut Self {
        self.command.args(args);
        self
    }

    /// Sets an environment variable.
    pub fn env(&mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> &mut Self {
        self.command.env(name, value);
        self
    }

    /// Sets environment variables.
    pub fn envs<N: AsRef<OsStr>, V: AsRef<OsStr>>(
        &mut self,
        variables: impl IntoIterator<Item = (N, V)>,
    ) -> &mut Self {
        self.command.envs(variables);
        self
    }

    /// Removes an environment variable.
    pub fn env_remove(&mut self, name: impl AsRef<OsStr>) -> &mut Self {
        self.command.env_remove(name);
        self
    }

    /// Makes the program run as this user, and as the group with the same number.
    pub fn as_user(&mut self, id: u32) -> &mut Self {
        self.command.uid(id).gid(id);
        self
    }

    /// Sets the directory in which the program runs.
    pub fn current_dir(&mut self, folder: impl AsRef<Path>) -> &mut Self {
        self.command.current_dir(folder);
        self
    }

    /// Sets the program's input.
    pub fn stdin(&mut self, from: impl Into<Stdio>) -> &mut Self {
        self.command.stdin(from);
        self
    }

    /// Sets the destination of the program's output. The destination of the log stays the same.
    pub fn stdout(&mut self, to: impl Into<Stdio>) -> &mut Self {
        self.command.stdout(to);
        self
    }

    /// Appends the log to this file, which the test can read.
    pub fn log_to(&mut self, path: &Path) -> &mut Self {
        let file = File::options().create(true).append(true).read(true).open(path);
        self.log = Some(file.expect("a log"));
        self
    }

    /// Sends the log to `to`, for a test that does not check the log. Panics are then not detected.
    pub fn lose_log(&mut self, to: impl Into<Stdio>) -> &mut Self {
        self.command.stderr(to);
        self.is_deaf = true;
        self
    }

    /// Starts the program.
    pub fn spawn(&mut self) -> std::io::Result<Process> {
        if self.command.get_args().next().is_some_and(|first| first == "bench") {
            let bench = Path::new(self.command.get_program()).with_file_name("hark-bench");
            let is_there = bench.is_file();
            assert!(is_there, "{} is missing: test with --workspace", bench.display());
        }
        let log = match &self.log {
            Some(log) => log.try_clone()?,
            None => nameless()?,
        };
        let from = log.metadata()?.len();
        if !self.is_deaf {
            self.command.stderr(log.try_clone()?);
        }
        let child = self.command.spawn()?;
        Ok(Process { child, log, from, passed: 0 })
    }

    /// Runs the program, and returns its exit status.
    pub fn status(&mut self) -> std::io::Result<ExitStatus> {
        self.spawn()?.wait()
    }

    /// Runs the program with `stdin` as its input.
    #[track_caller]
    pub fn run_with(&mut self, stdin: &[u8]) -> Finished {
        self.command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = self.spawn().expect("the binary runs");
        let (mut input, bytes) = (process.stdin.take().expect("is piped"), stdin.to_vec());
        // A command that fails early does not read all of its input.
        let writer = std::thread::spawn(move || drop(input.write_all(&bytes)));
        let finished = process.finish();
        writer.join().expect("no panic");
        finished
    }

    /// Runs the program, and returns its output and its log.
    pub fn output(&mut self) -> std::io::Result<Output> {
        self.command.stdout(Stdio::piped());
        self.spawn()?.wait_with_output()
    }
}

/// The result of a program that has ended.
#[derive(Debug)]
pub struct Finished {
    /// The exit code; -1 if a signal has ended the program.
    pub code: i32,
    /// The output.
    pub stdout: String,
    /// The log.
    pub stderr: String,
}

impl Finished {
    /// Returns the output of a program that succeeded.
    #[track_caller]
    pub fn text(self) -> String {
        assert_eq!(self.code, 0, "{}{}", self.stdout, self.stderr);
        self.stdout
    }

    /// Returns the output of a program that succeeded, as JSON.
    #[track_caller]
    pub fn json(&self) -> Value {
        assert_eq!(self.code, 0, "{}{}", self.stdout, self.stderr);
        self.json_of_any()
    }

    /// Returns the error message of a command that was refused.
    #[track_caller]
    pub fn refused(self) -> String {
        assert!([1, 2].contains(&self.code), "{self:?}");
        assert!(!self.stderr.trim().is_empty(), "it does not say why: {self:?}");
        self.stderr
    }

    /// Returns the output as JSON, whatever the exit code is.
    #[track_caller]
    pub fn json_of_any(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|_| panic!("no JSON: {self:?}"))
    }
}

/// Creates an unnamed file for a log. The file is gone when its last handle is closed.
fn nameless() -> std::io::Result<File> {
    static LOGS: AtomicU32 = AtomicU32::new(0);
    let number = LOGS.fetch_add(1, Ordering::Relaxed);
    let path = std::env::temp_dir().join(format!("hark-log-{}-{number}", std::process::id()));
    let log = File::options().create(true).truncate(false).append(true).read(true).open(&path)?;
    // An earlier process with the same id may have left the file behind.
    log.set_len(0)?;
    fs::remove_file(path)?;
    Ok(log)
}

/// The running binary. Dropping this value kills the process, and panics if its log contains a
/// panic.
#[derive(Debug)]
pub struct Process {
    child: Child,
    log: File,
    /// The position in the file at which the log of this process begins.
    from: u64,
    /// Number of bytes of the log that [`Process::wait_for_log`] has already searched.
    passed: usize,
}

impl Process {
    /// Returns the log of the process up to now.
    pub fn log(&self) -> String {
        let len = self.log.metadata().map_or(0, |of| of.len()).saturating_sub(self.from);
        let mut bytes = vec![0; len as usize];
        self.log.read_exact_at(&mut bytes, self.from).expect("a log is read");
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Returns the log after the last line that [`Process::wait_for_log`] returned.
    pub fn remaining_log(&self) -> String {
        self.log().split_off(self.passed)
    }

    /// Waits for a line of the log that contains this text, after the line that the last call
    /// returned. Returns the found line.
    pub fn wait_for_log(&mut self, said: &str) -> String {
        wait::until_ok(|| {
            // The state of the process is checked before the log is read, so that the last lines of
            // an ended process are not missed.
            let has_ended = self.child.try_wait().expect("is ours").is_some();
            let log = self.remaining_log();
            let Some(at) = log.find(said) else {
                let why = format!("the log is without {said:?}: {log}");
                assert!(!has_ended, "{why}");
                return Err(why);
            };
            let from = log[..at].rfind('\n').map_or(0, |end| end + 1);
            let to = log[at..].find('\n').map_or(log.len(), |end| at + end);
            self.passed += to;
            Ok(log[from..to].to_owned())
        })
    }

    /// Waits until `holds` returns true. Panics if the process ends first.
    #[track_caller]
    pub fn until(&mut self, what: &str, mut holds: impl FnMut() -> bool) {
        wait::until(what, || {
            let has_ended = self.child.try_wait().expect("is ours").is_some();
            let holds = holds();
            assert!(holds || !has_ended, "it ended before: {what}");
            holds
        });
    }

    /// Sends a signal by name.
    pub fn signal(&self, name: &str) {
        let id = self.child.id().to_string();
        let sent = Command::new("kill").args([&format!("-{name}"), &id]).status();
        assert!(sent.expect("there is `kill`").success());
    }

    /// Waits for the end, and returns output and log.
    pub fn wait_with_output(mut self) -> std::io::Result<Output> {
        drop(self.child.stdin.take());
        let mut stdout = Vec::new();
        if let Some(mut from) = self.child.stdout.take() {
            from.read_to_end(&mut stdout)?;
        }
        let status = self.child.wait()?;
        Ok(Output { status, stdout, stderr: self.log().into_bytes() })
    }

    /// Waits for the end, and returns the result.
    #[track_caller]
    pub fn finish(self) -> Finished {
        let output = self.wait_with_output().expect("it ends");
        Finished {
            code: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8(output.stdout).expect("is text"),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    /// Waits for the end of the process. Returns `None` if the process has not ended within
    /// `patience`.
    pub fn wait_for_end(&mut self, patience: Duration) -> Option<ExitStatus> {
        let mut ended = None;
        wait::holds_within(patience, || {
            ended = self.child.try_wait().expect("is ours");
            ended.is_some()
        });
        ended
    }
}

impl Deref for Process {
    type Target = Child;

    fn deref(&self) -> &Child {
        &self.child
    }
}

impl DerefMut for Process {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.child
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // This sends SIGKILL. The process may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        assert_no_panic(&self.log());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Program {
        let mut program = Program::new("sh");
        program.args(["-c", script]);
        program
    }

    #[test]
    fn a_panic_in_a_log_fails_the_test_that_started_the_process() {
        let said = "thread 'main' panicked at src/main.rs:1:1:";
        for end in ["exit 0", "exec sleep 100"] {
            let failed = std::panic::catch_unwind(|| {
                let mut process = shell(&format!("echo \"{said}\" >&2; {end}")).spawn().unwrap();
                process.wait_for_log("panicked");
            });
            let why = failed.unwrap_err().downcast::<String>().unwrap();
            assert!(why.contains(said), "{why}");
        }
        let mut process = shell("echo said >&2; echo said >&2; echo last >&2").spawn().unwrap();
        assert_eq!(process.wait_for_log("aid"), "said");
        process.wait_for_log("said");
        process.wait().unwrap();
        assert_eq!((process.remaining_log().trim(), process.log().lines().count()), ("last", 3));
        let output = shell("echo one; echo two >&2; exit 3").output().unwrap();
        assert_eq!(
            (output.status.code(), &output.stdout[..], &output.stderr[..]),
            (Some(3), &b"one\n"[..], &b"two\n"[..])
        );
    }
}
