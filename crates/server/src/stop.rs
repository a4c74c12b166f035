//! How far a server has gone on its way down, and how doors are told.

use tokio::sync::watch;

/// How far a server has gone on its way down.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    /// It takes connections.
    #[default]
    Open,
    /// Another process takes them; those that are here are served.
    Given,
    /// What is under way is finished, and connections are closed.
    Down,
}

/// Says when a door has to stop.
#[derive(Clone, Debug)]
pub struct Stop(pub(crate) watch::Receiver<Phase>);

impl Stop {
    /// Returns once no more connections are to be taken.
    pub async fn accepting(&mut self) {
        self.reached(Phase::Given).await;
    }

    /// Returns once connections are to be closed, after what is under way on them.
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
