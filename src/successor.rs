//! Handles SIGUSR2: starts the program at the path from which this process was started, to take
//! over from this process. The new process belongs to the same service as this process: it has the
//! same control group, user and rights.
//!
//! A shell starts the new process and ends, so the new process becomes a child of the service
//! manager (systemd is the parent of every orphan). A service manager learns the exit status only
//! of its own children. Without the shell, a crash of the new process would leave the service dead
//! while this process still serves its connections.

use std::ffi::OsString;
use std::io::{BufRead as _, BufReader, Error};
use std::os::fd::AsFd as _;
use std::process::{ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context as _;
use tokio::signal::unix::{Signal, SignalKind};

/// The flag with which a server takes over.
const TAKEOVER: &str = "--takeover";

/// Listens for SIGUSR2.
pub(crate) fn signal() -> anyhow::Result<Signal> {
    tokio::signal::unix::signal(SignalKind::user_defined2())
        .context("the system does not let Hark listen for signals")
}

/// Starts, at each signal, a process that takes over, unless such a process is already running.
/// Never returns.
pub(crate) async fn start_on_signal(mut signal: Signal) {
    let is_running = Arc::new(AtomicBool::new(false));
    while signal.recv().await.is_some() {
        if is_running.swap(true, Ordering::AcqRel) {
            tracing::warn!("the process that was started to take over still runs; none is started");
            continue;
        }
        let started = start().and_then(|process| wait(process, Arc::clone(&is_running)));
        if let Err(error) = started {
            is_running.store(false, Ordering::Release);
            tracing::error!(%error, "no process could be started to take over");
        }
    }
}

/// The shell that starts a program in the background, prints the process id, and ends. The shell's
/// stdin is the stdout of this process, which becomes the stdout of the program. A shell replaces
/// the stdin of background processes, so the script first copies the stdout to file descriptor 4.
/// The program keeps the shell's own stdout open as file descriptor 3 until the program ends.
const SHELL: &str = "/bin/sh";
const IN_BACKGROUND: &str = "exec 4>&0; \"$@\" 3>&1 >&4 4>&- </dev/null & echo $!";

/// Starts the program with the flags of this process. Returns a pipe that closes when the program
/// ends.
fn start() -> std::io::Result<BufReader<ChildStdout>> {
    let mut arguments = std::env::args_os();
    let program = arguments.next().unwrap_or_else(|| "hark".into());
    let mut arguments: Vec<OsString> = arguments.collect();
    if !arguments.iter().any(|argument| argument == TAKEOVER) {
        arguments.push(TAKEOVER.into());
    }
    let mut shell = Command::new(SHELL);
    shell.args(["-c", IN_BACKGROUND, "hark"]).arg(program).args(arguments);
    // The watchdog's variable names this process, and would stop the new process from notifying the
    // watchdog.
    shell.env_remove("WATCHDOG_PID");
    shell.stdin(std::io::stdout().as_fd().try_clone_to_owned()?).stdout(Stdio::piped());
    let mut shell = shell.spawn()?;
    let output = shell.stdout.take().ok_or_else(|| Error::other("the shell has no output"))?;
    let (mut output, mut id) = (BufReader::new(output), String::new());
    output.read_line(&mut id)?;
    if !shell.wait()?.success() || id.is_empty() {
        return Err(Error::other(format!("{SHELL} could not start it")));
    }
    tracing::info!(process = id.trim(), "a process was started to take over");
    Ok(output)
}

/// Waits for the end of the process on a separate thread.
fn wait(mut process: BufReader<ChildStdout>, is_running: Arc<AtomicBool>) -> std::io::Result<()> {
    let thread = std::thread::Builder::new().name("hark-successor".into());
    thread.spawn(move || {
        // No process writes to the pipe, so the copy ends when the process ends.
        let _ = std::io::copy(&mut process, &mut std::io::sink());
        tracing::warn!("the process that was to take over has ended");
        is_running.store(false, Ordering::Release);
    })?;
    Ok(())
}
