//! Handles Ctrl-C and SIGTERM: the first signal requests a clean end, the second signal ends the
//! process at once. A command that may end at any moment ends at the first signal.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context as _;
use hark_archive::vital;
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::print;

/// Exit code of a command that was interrupted.
pub(crate) const INTERRUPTED: u8 = 130;

/// Listens for signals on a separate thread. The first signal sets the returned flag.
pub(crate) fn flag() -> anyhow::Result<Arc<AtomicBool>> {
    flag_leaving("")
}

/// Like [`flag`], for a command that leaves files behind if it ends at once. `left` is a sentence
/// about these files and begins with a space.
pub(crate) fn flag_leaving(left: &str) -> anyhow::Result<Arc<AtomicBool>> {
    let words = format!("hark: asked a second time to stop, so it stopped at once.{left}");
    let flag = Arc::new(AtomicBool::new(false));
    let (runtime, mut signals) = listen()?;
    vital::spawn("hark-signals", {
        let flag = Arc::clone(&flag);
        move || {
            runtime.block_on(async {
                signals.next().await;
                flag.store(true, Ordering::Relaxed);
                signals.next().await;
                print::clear_progress();
                print::note!("{words}");
                std::process::exit(INTERRUPTED.into());
            });
        }
    })?;
    Ok(flag)
}

/// Ends the process at the first signal, for a command that may end at any moment of its work.
/// `left` describes the state that the command then leaves.
pub(crate) fn end_at_signal(left: String) -> anyhow::Result<()> {
    let (runtime, mut signals) = listen()?;
    vital::spawn("hark-signals", move || {
        runtime.block_on(signals.next());
        print::clear_progress();
        print::note!("hark: interrupted; {left}");
        std::process::exit(INTERRUPTED.into());
    })?;
    Ok(())
}

/// Returns the signals, and the runtime in which to wait for a signal.
fn listen() -> anyhow::Result<(Runtime, Signals)> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()
        .context("the system does not let Hark listen for signals")?;
    let signals = runtime.block_on(async { Signals::new() })?;
    Ok((runtime, signals))
}

/// Both signals as one stream, which must be created and read within a runtime.
pub(crate) struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    pub(crate) fn new() -> anyhow::Result<Self> {
        let listen = |kind| signal(kind).context("the system does not let Hark listen for signals");
        Ok(Self {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
        })
    }

    /// Waits for the next signal.
    pub(crate) async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}
