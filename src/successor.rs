//! SIGUSR2: starts the program that lies where this one was started from, to take over from this
//! process. A service manager that started this process then has the new one, too: in the same
//! control group, with the same user and rights.
//!
//! A shell starts the new process and ends, so the new process is not this one's child, but the service manager's
//! (systemd is the parent of every orphan). A manager notices how a process ends only if it is its child: else a
//! crash of the new process would leave the service dead while this one still serves its connections.

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

/// Starts a process that takes over, at each signal that comes while none runs. Never ends.
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

/// The program that starts another in the background, prints its process id, and ends. Its input is this process's
/// output, which the program gets as its own; a shell gives what it starts in the background another input, so the
/// output is kept under another number first. The program holds the shell's own output to its end, as file 3.
const SHELL: &str = "/bin/sh";
const IN_BACKGROUND: &str = "exec 4>&0; \"$@\" 3>&1 >&4 4>&- </dev/null & echo $!";

/// Starts the program with the flags of this process. Returns what ends with it.
fn start() -> std::io::Result<BufReader<ChildStdout>> {
    let mut arguments = std::env::args_os();
    let program = arguments.next().unwrap_or_else(|| "hark".into());
    let mut arguments: Vec<OsString> = arguments.collect();
    if !arguments.iter().any(|argument| argument == TAKEOVER) {
        arguments.push(TAKEOVER.into());
    }
    let mut shell = Command::new(SHELL);
    shell.args(["-c", IN_BACKGROUND, "hark"]).arg(program).args(arguments);
    // The watchdog's variable names this process, and would keep the new one silent.
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

/// Waits for the end of the process on a thread of its own.
fn wait(mut process: BufReader<ChildStdout>, is_running: Arc<AtomicBool>) -> std::io::Result<()> {
    let thread = std::thread::Builder::new().name("hark-successor".into());
    thread.spawn(move || {
        // Nothing is written to it.
        let _ = std::io::copy(&mut process, &mut std::io::sink());
        tracing::warn!("the process that was to take over has ended");
        is_running.store(false, Ordering::Release);
    })?;
    Ok(())
}
