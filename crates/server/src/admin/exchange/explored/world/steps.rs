//! The possible next steps in a world, by the process that takes the step.

use super::{
    ExchangeEvent, Link, MoveKind, NewProcess, NewProcessStep, OldProcess, OldProcessStep,
    PROCESSES, ProcessRole, Steps, Without, Word, World,
};

impl World {
    /// Returns all possible next steps.
    pub(in super::super) fn steps(&self, without: Without) -> Steps {
        let mut steps = Vec::new();
        for at in 0..PROCESSES {
            let process = &self.processes[at];
            if self.faults > 0 && process.lives() {
                self.faults_of(at, &mut steps);
            }
            if process.held_up {
                continue;
            }
            match process.part {
                // Processes start in the order of their numbers, because processes that have not
                // started are alike.
                ProcessRole::Away if self.processes[at - 1].part != ProcessRole::Away => {
                    self.come(at, &mut steps);
                }
                ProcessRole::Asking => self.ask(at, &mut steps),
                ProcessRole::Opening { turn } => {
                    let taking = ProcessRole::Taking {
                        turn,
                        taker: NewProcess::Ready,
                        next: NewProcessStep::Listen,
                    };
                    let mut next = self.set(at, taking);
                    next.processes[at].sees = self.log;
                    next.links[at].to_giver.push(Word::Ready);
                    steps.push((MoveKind::Normal, next));
                }
                ProcessRole::Taking { turn, taker, next } => {
                    self.take(at, (turn, taker, next), without, &mut steps);
                }
                ProcessRole::Serving => self.serve(at, &mut steps),
                ProcessRole::Giving { to, turn, giver, next, gone } => {
                    self.give(at, (to, turn, giver, next, gone), without, &mut steps);
                }
                ProcessRole::Following { whom } => {
                    if process.asked_to_end || !self.links[whom].taker_is_open {
                        steps.push((MoveKind::Normal, self.with(|world| world.end(at))));
                    }
                }
                ProcessRole::Ending => steps.push((
                    MoveKind::Normal,
                    self.with(|world| {
                        world.processes[at].part = ProcessRole::Ended;
                        world.processes[at].holds = false;
                        world.right = world.right.filter(|has| *has != at);
                    }),
                )),
                ProcessRole::Away | ProcessRole::Ended => {}
            }
        }
        steps
    }

    fn faults_of(&self, at: usize, steps: &mut Steps) {
        let mut fault = |change: &dyn Fn(&mut Self)| {
            let next = self.with(|world| {
                world.faults -= 1;
                change(world);
            });
            steps.push((MoveKind::Outside, next));
        };
        // The process is killed. This step also stands for a process that is asked to end before it
        // serves, or that cannot open the archive.
        fault(&|world| world.end(at));
        let process = &self.processes[at];
        if process.held_up {
            return;
        }
        fault(&|world| world.processes[at].held_up = true);
        let started = matches!(
            process.part,
            ProcessRole::Serving | ProcessRole::Giving { .. } | ProcessRole::Following { .. }
        );
        if started && !process.asked_to_end {
            fault(&|world| world.processes[at].asked_to_end = true);
        }
        if let ProcessRole::Taking { turn, taker, next: NewProcessStep::Begin } = process.part {
            let (taker, next) = taker.next(ExchangeEvent::Unable);
            fault(&|world| world.processes[at].part = ProcessRole::Taking { turn, taker, next });
        }
        if let ProcessRole::Giving { to, turn, giver, next: OldProcessStep::Claim, gone } =
            process.part
        {
            let (giver, next) = giver.next(ExchangeEvent::Unable);
            fault(&|world| {
                world.processes[at].part = ProcessRole::Giving { to, turn, giver, next, gone }
            });
        }
    }

    /// Starts a process, which asks the running server to hand over, or serves if no process holds
    /// LOCK.
    fn come(&self, at: usize, steps: &mut Steps) {
        let server = &self.processes[self.published];
        if server.part == ProcessRole::Serving {
            let mut next = self.set(at, ProcessRole::Asking);
            let (giver_is_open, taker_is_open) = (true, true);
            let link =
                Link { giver: self.published, giver_is_open, taker_is_open, ..Link::default() };
            next.links[at] = link;
            steps.push((MoveKind::Outside, next));
        } else if !self.processes.iter().any(|process| process.holds) && self.right.is_none() {
            let next = self.with(|world| {
                let process = &mut world.processes[at];
                (process.part, process.holds, process.writes) = (ProcessRole::Serving, true, true);
                process.sees = world.log;
                world.published = at;
                world.claim(at, u8::MAX);
            });
            steps.push((MoveKind::Outside, next));
        }
    }

    fn ask(&self, at: usize, steps: &mut Steps) {
        let link = &self.links[at];
        let next = match link.to_taker.first() {
            Some(Word::Handed(turn)) => self.set(at, ProcessRole::Opening { turn: *turn }),
            Some(_) => self.with(|world| world.end(at)),
            None if !link.giver_is_open || self.refuses(link.giver) => {
                self.with(|world| world.end(at))
            }
            None => return,
        };
        steps.push((MoveKind::Normal, next.with(|world| world.links[at].deliver_to_taker())));
    }

    /// Whether process `at` refuses to hand over, because another process asked first.
    fn refuses(&self, at: usize) -> bool {
        let process = &self.processes[at];
        let asked =
            matches!(process.part, ProcessRole::Giving { .. } | ProcessRole::Following { .. });
        asked && !process.held_up
    }

    fn serve(&self, at: usize, steps: &mut Steps) {
        let process = &self.processes[at];
        if process.asked_to_end {
            steps.push((MoveKind::Normal, self.with(|world| world.end(at))));
        }
        if process.writes && self.batches > 0 {
            let next = self.with(|world| {
                assert_eq!(
                    world.processes[at].sees, world.log,
                    "a process overwrites the writes of another process"
                );
                world.batches -= 1;
                world.log += 1;
                world.processes[at].sees = world.log;
            });
            steps.push((MoveKind::Outside, next));
        }
        for (to, link) in self.links.iter().enumerate() {
            let asks = self.processes[to].part == ProcessRole::Asking && link.to_taker.is_empty();
            if !asks || link.giver != at || !link.giver_is_open {
                continue;
            }
            let (giver, next) = (OldProcess::Handed, OldProcessStep::Listen);
            // The turn after the other process has claimed the right: the offer and the claim each
            // add 1.
            let turn = self.turn + 2;
            let mut next = self.set(at, ProcessRole::Giving { to, turn, giver, next, gone: false });
            next.processes[at].writes = false;
            next.links[to].to_taker.push(Word::Handed(self.turn + 1));
            // LOCK already counts as held while its handle is in transit.
            next.processes[to].holds = true;
            steps.push((MoveKind::Normal, next));
        }
    }

    fn give(
        &self,
        at: usize,
        (to, turn, giver, next, gone): (usize, u8, OldProcess, OldProcessStep, bool),
        without: Without,
        steps: &mut Steps,
    ) {
        let link = &self.links[to];
        let after = |world: &Self, event: ExchangeEvent| {
            let (giver, next) = giver.next(event);
            let gone = gone || event == ExchangeEvent::Gone;
            world.set(at, ProcessRole::Giving { to, turn, giver, next, gone })
        };
        let mut normal = |next: Self| steps.push((MoveKind::Normal, next));
        match next {
            OldProcessStep::Listen => {
                if self.processes[at].asked_to_end {
                    normal(after(self, ExchangeEvent::Stop));
                }
                if let Some(word) = link.to_giver.first().filter(|_| !gone) {
                    let event = match word {
                        Word::Ready => ExchangeEvent::Ready,
                        Word::Started => ExchangeEvent::Started,
                        _ => ExchangeEvent::Failed,
                    };
                    let next = after(self, event);
                    normal(next.with(|world| world.links[to].deliver_to_giver()));
                } else if !link.taker_is_open && !gone {
                    normal(after(self, ExchangeEvent::Gone));
                }
                // `Moment` is left out while another process has the right, because it would only
                // lead to another `Moment`.
                let waits = matches!(giver, OldProcess::Parted | OldProcess::Stalled);
                if waits && self.right.is_none() && self.turn <= turn {
                    normal(after(self, ExchangeEvent::Moment));
                }
                if giver != OldProcess::Stalled {
                    steps.push((MoveKind::Late, after(self, ExchangeEvent::Late)));
                }
            }
            OldProcessStep::Offer => normal(self.with(|world| {
                world.offer(at);
                world.links[to].to_taker.push(Word::Go);
                let next = OldProcessStep::Listen;
                world.processes[at].part = ProcessRole::Giving { to, turn, giver, next, gone };
            })),
            OldProcessStep::Claim => {
                let mut next = self.clone();
                let event = match without {
                    Without::Claiming => ExchangeEvent::Claimed,
                    Without::Turns => next.claim(at, u8::MAX),
                    Without::Nothing => next.claim(at, turn),
                };
                // As in `handover`, a claim that comes too late has the same result as a claim
                // while another process has the right.
                normal(after(
                    &next,
                    if event == ExchangeEvent::Unable { ExchangeEvent::Held } else { event },
                ));
            }
            OldProcessStep::Refuse => {
                normal(self.set(
                    at,
                    ProcessRole::Giving { to, turn, giver, next: OldProcessStep::Listen, gone },
                ));
            }
            OldProcessStep::Resume => normal(self.with(|world| {
                world.links[to].to_taker.push(Word::Failed);
                world.links[to].giver_is_open = false;
                let process = &mut world.processes[at];
                if process.sees == world.log || without == Without::Claiming {
                    (process.part, process.writes) = (ProcessRole::Serving, true);
                } else {
                    world.end(at);
                }
            })),
            OldProcessStep::Follow => normal(self.with(|world| {
                world.processes[at].part = ProcessRole::Following { whom: to };
                world.processes[at].holds = false;
            })),
            OldProcessStep::Leave | OldProcessStep::End => normal(self.with(|world| {
                world.offer(at);
                world.end(at);
            })),
        }
    }

    fn take(
        &self,
        at: usize,
        (turn, taker, next): (u8, NewProcess, NewProcessStep),
        without: Without,
        steps: &mut Steps,
    ) {
        let link = &self.links[at];
        let after = |world: &Self, event: ExchangeEvent| {
            let (taker, next) = taker.next(event);
            world.set(at, ProcessRole::Taking { turn, taker, next })
        };
        let mut normal = |next: Self| steps.push((MoveKind::Normal, next));
        match (next, taker) {
            (NewProcessStep::Listen, NewProcess::Ready) => {
                let event = match link.to_taker.first() {
                    Some(Word::Go) => ExchangeEvent::Go,
                    Some(_) => ExchangeEvent::Failed,
                    None if !link.giver_is_open => ExchangeEvent::Gone,
                    None => return,
                };
                let next = after(self, event);
                normal(next.with(|world| world.links[at].deliver_to_taker()));
            }
            (NewProcessStep::Listen, NewProcess::Orphaned) => {
                if self.right.is_none() && self.turn <= turn {
                    normal(after(self, ExchangeEvent::Moment));
                }
                steps.push((MoveKind::Late, after(self, ExchangeEvent::Late)));
            }
            (NewProcessStep::Claim, _) => {
                let mut next = self.clone();
                let turn = if without == Without::Turns { u8::MAX } else { turn };
                let event = next.claim(at, turn);
                normal(after(&next, event));
            }
            (NewProcessStep::Begin, _) => {
                let unchanged = self.processes[at].sees == self.log;
                let next = self.with(|world| world.processes[at].writes = unchanged);
                normal(after(
                    &next,
                    if unchanged { ExchangeEvent::Begun } else { ExchangeEvent::Unable },
                ));
            }
            (NewProcessStep::Start, _) => normal(self.with(|world| {
                world.links[at].to_giver.push(Word::Started);
                (world.processes[at].part, world.published) = (ProcessRole::Serving, at);
            })),
            (NewProcessStep::End, _) => normal(self.with(|world| {
                world.links[at].to_giver.push(Word::Failed);
                world.end(at);
            })),
        }
    }
}
