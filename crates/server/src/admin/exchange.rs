//! What each side of a takeover does next. Doing it is for `give` and `take`; the tests below walk
//! through everything that can happen between them, in every order.
//!
//! Two things make it safe, and nothing that is said or not said can undo them. A process writes only
//! with the right to, which one process at a time can claim, and which goes back when that process
//! ends. And the old process claims it again before it goes on, so what it had offered is void then.

/// What a side hears or finds out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Event {
    /// The new process has opened the archive.
    Ready,
    /// The old process has offered the right to write.
    Go,
    /// The new process has the right to write, and uses it from now on.
    Started,
    /// The other process gives up, or says what does not belong here.
    Failed,
    /// The connection has ended.
    Gone,
    /// The other process has taken too long.
    Late,
    /// A moment has passed.
    Moment,
    /// This process is to end.
    Stop,
    /// The right to write is this process's now.
    Claimed,
    /// Another process has it.
    Held,
    /// What is opened can be written.
    Begun,
    /// What was to be done can not be.
    Unable,
}

/// The old process, once it has stopped writing and handed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Giver {
    /// It has the right to write, and waits for the new process to open the archive.
    Handed,
    /// It has offered that right.
    Offered,
    /// And the new process says no more, but may not have ended yet.
    Parted,
    /// The new process took too long, and has the right to write.
    Stalled,
}

/// What the old process does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Give {
    /// Waits for an event.
    Listen,
    /// Offers the right to write, and says so.
    Offer,
    /// Claims it.
    Claim,
    /// Lets writes wait no longer, but refuses them; then waits for an event.
    Refuse,
    /// Goes on as before.
    Resume,
    /// Follows the new process.
    Follow,
    /// Ends without writing, and leaves the archive to the new process.
    Leave,
    /// Ends, as it cannot write any more.
    End,
}

impl Giver {
    /// What it is after an event, and what it does.
    pub(super) fn next(self, event: Event) -> (Self, Give) {
        use Event::{Claimed, Held, Moment, Ready, Started, Stop, Unable};
        match (self, event) {
            (_, Stop) => (self, Give::Leave),
            (_, Unable) => (self, Give::End),
            // Only who has claimed the right to write may go on, however it came to want to.
            (_, Claimed) => (self, Give::Resume),
            (Self::Handed | Self::Offered, Moment) | (Self::Parted, Held) => (self, Give::Listen),
            (Self::Handed, Ready) => (Self::Offered, Give::Offer),
            (Self::Offered | Self::Stalled, Started) => (self, Give::Follow),
            (Self::Handed | Self::Offered | Self::Stalled, Held) => (Self::Stalled, Give::Refuse),
            (Self::Handed, _) => (Self::Handed, Give::Claim),
            (Self::Offered | Self::Parted, Event::Late) | (Self::Stalled, _) => {
                (Self::Stalled, Give::Claim)
            }
            (Self::Offered | Self::Parted, _) => (Self::Parted, Give::Claim),
        }
    }
}

/// The new process, once it has opened the archive and said so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Taker {
    /// The old process is there.
    Ready,
    /// It went away without a word, and may not have ended yet.
    Orphaned,
}

/// What the new process does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Take {
    /// Waits for an event.
    Listen,
    /// Claims the right to write, if it is still the one that was offered.
    Claim,
    /// Opens for writing what it has opened for reading.
    Begin,
    /// Says that it has started. From then on it writes, whether it was heard or not.
    Start,
    /// Ends. Nothing was written.
    End,
}

impl Taker {
    /// What it is after an event, and what it does.
    pub(super) fn next(self, event: Event) -> (Self, Take) {
        use Event::{Begun, Claimed, Go, Gone, Held, Moment};
        match (self, event) {
            (_, Claimed) => (self, Take::Begin),
            (_, Begun) => (self, Take::Start),
            (Self::Ready, Go) => (self, Take::Claim),
            // Who gives up says so. Who has died has the right to write no more.
            (Self::Ready, Gone) | (Self::Orphaned, Moment) => (Self::Orphaned, Take::Claim),
            (Self::Orphaned, Held) => (self, Take::Listen),
            _ => (self, Take::End),
        }
    }
}

#[cfg(test)]
mod explored;
