//! The phases of a server's shutdown, and how doors learn of them.

use tokio::sync::watch;

/// The phases from a running server to a stopped one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    /// The server accepts connections.
    #[default]
    Open,
    /// Another process accepts connections; this one serves those that it has.
    Given,
    /// Requests under way are finished, and connections are closed.
    Down,
}

/// Notifies a door when to stop.
#[derive(Clone, Debug)]
pub struct StopSignal(pub(crate) watch::Receiver<Phase>);

impl StopSignal {
    /// Returns once no more connections are to be accepted.
    pub async fn accepting(&mut self) {
        self.reached(Phase::Given).await;
    }

    /// Returns once connections are to be closed, after the requests under way on them.
    pub async fn serving(&mut self) {
        self.reached(Phase::Down).await;
    }

    /// Whether connections are being closed.
    pub fn is_down(&self) -> bool {
        *self.0.borrow() == Phase::Down
    }

    async fn reached(&mut self, phase: Phase) {
        // An error means that the server is gone, and nothing is left to be served.
        let _ = self.0.wait_for(|now| *now >= phase).await;
    }
}
