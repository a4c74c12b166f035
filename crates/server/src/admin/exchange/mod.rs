//! Decides the next step of each side of a takeover. `handover` and `takeover` perform these steps.
//! The tests below explore every order of events between the processes.
//!
//! Two rules make a takeover safe, whichever messages are sent or lost. First, a process writes
//! only while it has the right to write. Only one process at a time can claim this right, and the
//! end of that process releases the right. Second, the old process claims the right again before it
//! continues, which voids its earlier offer.

/// An event that one side of a takeover receives or detects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum ExchangeEvent {
    /// The new process has opened the archive.
    Ready,
    /// The old process has offered the right to write.
    Go,
    /// The new process has the right to write, and writes from now on.
    Started,
    /// The other process gives up, or sends an unexpected message.
    Failed,
    /// The connection has ended.
    Gone,
    /// The other process has taken too long.
    Late,
    /// Nothing has happened for a short time.
    Moment,
    /// This process has been asked to end.
    Stop,
    /// This process has the right to write now.
    Claimed,
    /// Another process has the right to write.
    Held,
    /// The shelves are open for writing.
    Begun,
    /// The step could not be performed.
    Unable,
}

/// The state of the old process, after it has stopped writing and handed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum OldProcess {
    /// The old process has the right to write, and waits for the new process to open the archive.
    Handed,
    /// The old process has offered the right to write.
    Offered,
    /// The old process has offered the right to write. The new process has failed or disconnected,
    /// but may not have ended yet.
    Parted,
    /// The new process took too long, and has the right to write.
    Stalled,
}

/// The next step of the old process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum OldProcessStep {
    /// Waits for an event.
    Listen,
    /// Offers the right to write, and sends GO.
    Offer,
    /// Claims the right to write.
    Claim,
    /// Refuses writes instead of holding them; then waits for an event.
    Refuse,
    /// Continues as before the takeover.
    Resume,
    /// Follows the new process.
    Follow,
    /// Ends without writing, and leaves the archive to the new process.
    Leave,
    /// Ends, because this process cannot write any more.
    End,
}

impl OldProcess {
    /// Returns the state after an event, and the next step.
    pub(super) fn next(self, event: ExchangeEvent) -> (Self, OldProcessStep) {
        use ExchangeEvent::{Claimed, Held, Moment, Ready, Started, Stop, Unable};
        match (self, event) {
            (_, Stop) => (self, OldProcessStep::Leave),
            (_, Unable) => (self, OldProcessStep::End),
            // Only a process that has claimed the right to write may continue, in any state.
            (_, Claimed) => (self, OldProcessStep::Resume),
            (Self::Handed | Self::Offered, Moment) | (Self::Parted, Held) => {
                (self, OldProcessStep::Listen)
            }
            (Self::Handed, Ready) => (Self::Offered, OldProcessStep::Offer),
            (Self::Offered | Self::Stalled, Started) => (self, OldProcessStep::Follow),
            (Self::Handed | Self::Offered | Self::Stalled, Held) => {
                (Self::Stalled, OldProcessStep::Refuse)
            }
            (Self::Handed, _) => (Self::Handed, OldProcessStep::Claim),
            (Self::Offered | Self::Parted, ExchangeEvent::Late) | (Self::Stalled, _) => {
                (Self::Stalled, OldProcessStep::Claim)
            }
            (Self::Offered | Self::Parted, _) => (Self::Parted, OldProcessStep::Claim),
        }
    }
}

/// The state of the new process, after it has opened the archive and sent READY.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum NewProcess {
    /// The old process is connected.
    Ready,
    /// The old process has disconnected without a message, and may not have ended yet.
    Orphaned,
}

/// The next step of the new process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum NewProcessStep {
    /// Waits for an event.
    Listen,
    /// Claims the right to write. The claim fails if another process has claimed the right since
    /// the offer.
    Claim,
    /// Opens the shelves for writing. Until then they are open for reading.
    Begin,
    /// Sends STARTED. The new process writes from now on, whether the message arrives or not.
    Start,
    /// Ends. Nothing was written.
    End,
}

impl NewProcess {
    /// Returns the state after an event, and the next step.
    pub(super) fn next(self, event: ExchangeEvent) -> (Self, NewProcessStep) {
        use ExchangeEvent::{Begun, Claimed, Go, Gone, Held, Moment};
        match (self, event) {
            (_, Claimed) => (self, NewProcessStep::Begin),
            (_, Begun) => (self, NewProcessStep::Start),
            (Self::Ready, Go) => (self, NewProcessStep::Claim),
            // A process that gives up sends FAILED. A process that has died has lost the right.
            (Self::Ready, Gone) | (Self::Orphaned, Moment) => {
                (Self::Orphaned, NewProcessStep::Claim)
            }
            (Self::Orphaned, Held) => (self, NewProcessStep::Listen),
            _ => (self, NewProcessStep::End),
        }
    }
}

#[cfg(test)]
mod explored;
