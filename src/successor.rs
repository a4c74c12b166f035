//! SIGUSR2: starts the program that lies where this one was started from, to take over from this
//! process. A service manager that started this process then has the new one, too: as a child in the
//! same control group, with the same user and rights.

use std::ffi::OsString;
use std::process::{Child, Command, Stdio};
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
        let started = start().and_then(|child| wait(child, Arc::clone(&is_running)));
        if let Err(error) = started {
            is_running.store(false, Ordering::Release);
            tracing::error!(%error, "no process could be started to take over");
        }
    }
}

/// Starts the program with the flags of this process.
fn start() -> std::io::Result<Child> {
    let mut arguments = std::env::args_os();
    let program = arguments.next().unwrap_or_else(|| "hark".into());
    let mut arguments: Vec<OsString> = arguments.collect();
    if !arguments.iter().any(|argument| argument == TAKEOVER) {
        arguments.push(TAKEOVER.into());
    }
    let mut command = Command::new(program);
    // The watchdog's variable names this process, and would keep the new one silent.
    command.args(arguments).env_remove("WATCHDOG_PID").stdin(Stdio::null());
    let child = command.spawn()?;
    tracing::info!(process = child.id(), "a process was started to take over");
    Ok(child)
}

/// Waits for the end of the process on a thread of its own.
fn wait(mut child: Child, is_running: Arc<AtomicBool>) -> std::io::Result<()> {
    let thread = std::thread::Builder::new().name("hark-successor".into());
    thread.spawn(move || {
        match child.wait() {
            Ok(status) => tracing::warn!(%status, "the process that was to take over has ended"),
            Err(error) => tracing::warn!(%error, "the process that was to take over is lost"),
        }
        is_running.store(false, Ordering::Release);
    })?;
    Ok(())
}
