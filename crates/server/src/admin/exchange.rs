//! Decides what each side of a takeover does next. `give` and `take` perform these steps; the tests
//! below explore everything that can happen between the two processes, in every order.
//!
//! Two rules make a takeover safe, whichever messages are sent or lost. A process writes only while
//! it has the right to write, which one process at a time can claim, and which the end of that
//! process releases. And the old process claims the right again before it continues, which voids
//! its earlier offer.

/// What a side receives or detects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum ExchangeEvent {
    /// The new process has opened the archive.
    Ready,
    /// The old process has offered the right to write.
    Go,
    /// The new process has the right to write, and uses it from now on.
    Started,
    /// The other process gives up, or sends a message that does not belong here.
    Failed,
    /// The connection has ended.
    Gone,
    /// The other process has taken too long.
    Late,
    /// Nothing has happened for a short time.
    Moment,
    /// This process is to end.
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

/// The state of the old process, once it has stopped writing and handed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum OldProcess {
    /// It has the right to write, and waits for the new process to open the archive.
    Handed,
    /// It has offered that right.
    Offered,
    /// It has offered that right; the new process has failed or left, but may not have ended yet.
    Parted,
    /// The new process took too long, and has the right to write.
    Stalled,
}

/// What the old process does next.
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
    /// Ends, because it cannot write any more.
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

/// The state of the new process, once it has opened the archive and sent READY.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum NewProcess {
    /// The old process is connected.
    Ready,
    /// The old process has disconnected without a message, and may not have ended yet.
    Orphaned,
}

/// What the new process does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum NewProcessStep {
    /// Waits for an event.
    Listen,
    /// Claims the right to write, unless another process has claimed it since it was offered.
    Claim,
    /// Opens for writing what it has opened for reading.
    Begin,
    /// Sends STARTED. From then on it writes, whether the message arrives or not.
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
