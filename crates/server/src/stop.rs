//! The phases of a server's shutdown, and the signal that reports the phases to doors.

use tokio::sync::watch;

/// A phase of a server, from running to stopped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    /// The server accepts connections.
    #[default]
    Open,
    /// Another process accepts connections; this process serves its open connections.
    Given,
    /// Requests under way are finished, and connections are closed.
    Down {
        /// Whether another process accepts connections.
        is_replaced: bool,
    },
}

/// Signals a door to stop.
#[derive(Clone, Debug)]
pub struct StopSignal(pub(crate) watch::Receiver<Phase>);

impl StopSignal {
    /// Waits until the server stops accepting connections.
    pub async fn accepting(&mut self) {
        self.reached(Phase::Given).await;
    }

    /// Waits until the open connections are to be closed, each after its requests under way.
    pub async fn serving(&mut self) {
        self.reached(Phase::Down { is_replaced: false }).await;
    }

    /// Whether connections are being closed.
    pub fn is_down(&self) -> bool {
        matches!(*self.0.borrow(), Phase::Down { .. })
    }

    /// Whether another process accepts connections.
    pub(crate) fn is_replaced(&self) -> bool {
        matches!(*self.0.borrow(), Phase::Given | Phase::Down { is_replaced: true })
    }

    async fn reached(&mut self, phase: Phase) {
        // An error means that the server is gone, and nothing is left to be served.
        let _ = self.0.wait_for(|now| *now >= phase).await;
    }
}
