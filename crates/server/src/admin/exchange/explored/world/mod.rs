//! A model of three processes: the role of each, the messages in transit between two of them, the
//! locks, and the length of the log.

use super::super::{ExchangeEvent, NewProcess, NewProcessStep, OldProcess, OldProcessStep};

mod steps;

pub(super) const PROCESSES: usize = 3;

/// A message from one process to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Word {
    Handed(u8),
    Ready,
    Go,
    Started,
    Failed,
}

/// The role of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum ProcessRole {
    Away,
    Asking,
    Opening {
        turn: u8,
    },
    Taking {
        turn: u8,
        taker: NewProcess,
        next: NewProcessStep,
    },
    Serving,
    Giving {
        to: usize,
        turn: u8,
        giver: OldProcess,
        next: OldProcessStep,
        gone: bool,
    },
    Following {
        whom: usize,
    },
    /// The process has closed its sockets, but has not released its locks yet.
    Ending,
    Ended,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[allow(clippy::struct_excessive_bools)] // the flags are independent
pub(super) struct ModelProcess {
    pub(super) part: ProcessRole,
    /// Whether the process's store writes.
    writes: bool,
    /// The length of the log, as far as the process knows.
    sees: u8,
    /// Whether the process holds LOCK.
    holds: bool,
    asked_to_end: bool,
    /// Whether the process is suspended permanently, but has not ended.
    held_up: bool,
}

impl ModelProcess {
    fn lives(&self) -> bool {
        !matches!(self.part, ProcessRole::Away | ProcessRole::Ending | ProcessRole::Ended)
    }
}

/// The connection on which a process has asked another process to hand over.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Link {
    giver: usize,
    to_giver: Vec<Word>,
    to_taker: Vec<Word>,
    giver_is_open: bool,
    taker_is_open: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct World {
    pub(super) processes: [ModelProcess; PROCESSES],
    /// The connections, indexed by the process that asked.
    links: [Link; PROCESSES],
    /// The process that has the right to write. `turn` is a counter of the transfers of this right:
    /// it is even while a process has the right, and odd while the right is offered.
    right: Option<usize>,
    turn: u8,
    log: u8,
    /// The process that owns `control.sock`.
    published: usize,
    /// Number of batches that are still to be written, and number of faults (kills, requests to end
    /// and the like) that are still to happen.
    batches: u8,
    faults: u8,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum MoveKind {
    /// The step happens sooner or later.
    Normal,
    /// The step happens if no other step does.
    Late,
    /// The step may or may not happen.
    Outside,
}

/// The rule that is left out, to test that the rule is needed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Without {
    Nothing,
    /// The old process continues without claiming the right to write.
    Claiming,
    /// The new process claims a right that was offered long ago.
    Turns,
}

pub(super) type Steps = Vec<(MoveKind, World)>;

impl World {
    /// Creates the initial world: one process serves, and the others have not started. `faults` and
    /// `batches` are the numbers of faults and batches to come.
    pub(super) fn new(faults: u8, batches: u8) -> Self {
        let away = ModelProcess {
            part: ProcessRole::Away,
            writes: false,
            sees: 0,
            holds: false,
            asked_to_end: false,
            held_up: false,
        };
        let first =
            ModelProcess { part: ProcessRole::Serving, writes: true, holds: true, ..away.clone() };
        Self {
            processes: [first, away.clone(), away],
            links: Default::default(),
            right: Some(0),
            turn: 2,
            log: 0,
            published: 0,
            batches,
            faults,
        }
    }

    /// Returns a copy of this world, changed by `change`.
    fn with(&self, change: impl FnOnce(&mut Self)) -> Self {
        let mut next = self.clone();
        change(&mut next);
        next
    }

    fn set(&self, at: usize, part: ProcessRole) -> Self {
        self.with(|world| world.processes[at].part = part)
    }

    /// Closes the sockets of a process that ends.
    fn end(&mut self, at: usize) {
        self.processes[at].part = ProcessRole::Ending;
        self.processes[at].writes = false;
        self.links[at].taker_is_open = false;
        self.links.iter_mut().filter(|link| link.giver == at).for_each(|link| {
            link.giver_is_open = false;
        });
    }

    /// Releases the right to write if process `at` has this right.
    fn offer(&mut self, at: usize) {
        if self.right == Some(at) {
            (self.right, self.turn) = (None, self.turn + 1);
        }
    }

    /// Lets process `at` claim the right to write. Fails if another process has the right, or if
    /// the counter is past `turn`.
    fn claim(&mut self, at: usize, turn: u8) -> ExchangeEvent {
        if self.right.is_some_and(|has| has != at) {
            return ExchangeEvent::Held;
        }
        if self.turn > turn {
            return ExchangeEvent::Unable;
        }
        (self.right, self.turn) = (Some(at), (self.turn / 2 + 1) * 2);
        ExchangeEvent::Claimed
    }

    /// Checks the invariants that must hold in every world.
    pub(super) fn is_safe(&self) -> Result<(), &'static str> {
        let writing = || (0..PROCESSES).filter(|at| self.processes[*at].writes);
        if writing().count() > 1 {
            return Err("two processes write");
        }
        if writing().any(|at| self.right != Some(at)) {
            return Err("a process writes without the right to write");
        }
        if writing().any(|at| self.processes[at].sees != self.log) {
            return Err("a process writes without knowing the whole log");
        }
        Ok(())
    }

    /// Whether no further step is required: every process has ended, serves, or waits for a process
    /// that is suspended.
    pub(super) fn is_settled(&self) -> bool {
        let held_up = |at: usize| self.processes[at].held_up;
        (0..PROCESSES).all(|at| match self.processes[at].part {
            ProcessRole::Away | ProcessRole::Ended => true,
            _ if held_up(at) => true,
            ProcessRole::Serving => self.processes[at].writes,
            ProcessRole::Following { whom } => self.processes[whom].lives(),
            ProcessRole::Giving { giver: OldProcess::Stalled, .. } => {
                self.right.is_some_and(held_up)
            }
            ProcessRole::Asking | ProcessRole::Taking { taker: NewProcess::Ready, .. } => {
                held_up(self.links[at].giver)
            }
            _ => false,
        })
    }
}

impl Link {
    /// Delivers the first message to the new process, if a message is in transit.
    fn deliver_to_taker(&mut self) {
        self.to_taker.drain(..self.to_taker.len().min(1));
    }

    fn deliver_to_giver(&mut self) {
        self.to_giver.drain(..self.to_giver.len().min(1));
    }
}
