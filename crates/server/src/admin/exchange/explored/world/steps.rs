//! The steps that can happen next in a world, by the process that takes them.

use super::{
    Event, Give, Giver, Kind, Link, PROCESSES, Part, Steps, Take, Taker, Without, Word, World,
};

impl World {
    /// All steps that can happen next.
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
                // Processes start in the order of their numbers, as before that all are alike.
                Part::Away if self.processes[at - 1].part != Part::Away => {
                    self.come(at, &mut steps);
                }
                Part::Asking => self.ask(at, &mut steps),
                Part::Opening { turn } => {
                    let taking = Part::Taking { turn, taker: Taker::Ready, next: Take::Listen };
                    let mut next = self.set(at, taking);
                    next.processes[at].sees = self.log;
                    next.links[at].to_giver.push(Word::Ready);
                    steps.push((Kind::Normal, next));
                }
                Part::Taking { turn, taker, next } => {
                    self.take(at, (turn, taker, next), without, &mut steps);
                }
                Part::Serving => self.serve(at, &mut steps),
                Part::Giving { to, turn, giver, next, gone } => {
                    self.give(at, (to, turn, giver, next, gone), without, &mut steps);
                }
                Part::Following { whom } => {
                    if process.asked_to_end || !self.links[whom].taker_is_open {
                        steps.push((Kind::Normal, self.with(|world| world.end(at))));
                    }
                }
                Part::Ending => steps.push((
                    Kind::Normal,
                    self.with(|world| {
                        world.processes[at].part = Part::Ended;
                        world.processes[at].holds = false;
                        world.right = world.right.filter(|has| *has != at);
                    }),
                )),
                Part::Away | Part::Ended => {}
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
            steps.push((Kind::Outside, next));
        };
        // Being killed. A process that does not serve yet also ends at once if it is asked to end
        // or cannot open the archive.
        fault(&|world| world.end(at));
        let process = &self.processes[at];
        if process.held_up {
            return;
        }
        fault(&|world| world.processes[at].held_up = true);
        let started =
            matches!(process.part, Part::Serving | Part::Giving { .. } | Part::Following { .. });
        if started && !process.asked_to_end {
            fault(&|world| world.processes[at].asked_to_end = true);
        }
        if let Part::Taking { turn, taker, next: Take::Begin } = process.part {
            let (taker, next) = taker.next(Event::Unable);
            fault(&|world| world.processes[at].part = Part::Taking { turn, taker, next });
        }
        if let Part::Giving { to, turn, giver, next: Give::Claim, gone } = process.part {
            let (giver, next) = giver.next(Event::Unable);
            fault(&|world| world.processes[at].part = Part::Giving { to, turn, giver, next, gone });
        }
    }

    /// A process starts: it asks the server that it finds, or serves if no process holds LOCK.
    fn come(&self, at: usize, steps: &mut Steps) {
        let server = &self.processes[self.published];
        if server.part == Part::Serving {
            let mut next = self.set(at, Part::Asking);
            let (giver_is_open, taker_is_open) = (true, true);
            let link =
                Link { giver: self.published, giver_is_open, taker_is_open, ..Link::default() };
            next.links[at] = link;
            steps.push((Kind::Outside, next));
        } else if !self.processes.iter().any(|process| process.holds) && self.right.is_none() {
            let next = self.with(|world| {
                let process = &mut world.processes[at];
                (process.part, process.holds, process.writes) = (Part::Serving, true, true);
                process.sees = world.log;
                world.published = at;
                world.claim(at, u8::MAX);
            });
            steps.push((Kind::Outside, next));
        }
    }

    fn ask(&self, at: usize, steps: &mut Steps) {
        let link = &self.links[at];
        let next = match link.to_taker.first() {
            Some(Word::Handed(turn)) => self.set(at, Part::Opening { turn: *turn }),
            Some(_) => self.with(|world| world.end(at)),
            None if !link.giver_is_open || self.refuses(link.giver) => {
                self.with(|world| world.end(at))
            }
            None => return,
        };
        steps.push((Kind::Normal, next.with(|world| world.links[at].told_taker())));
    }

    /// Whether process `at` refuses to hand over, because another process asked before.
    fn refuses(&self, at: usize) -> bool {
        let process = &self.processes[at];
        let asked = matches!(process.part, Part::Giving { .. } | Part::Following { .. });
        asked && !process.held_up
    }

    fn serve(&self, at: usize, steps: &mut Steps) {
        let process = &self.processes[at];
        if process.asked_to_end {
            steps.push((Kind::Normal, self.with(|world| world.end(at))));
        }
        if process.writes && self.batches > 0 {
            let next = self.with(|world| {
                assert_eq!(
                    world.processes[at].sees, world.log,
                    "it writes over what another wrote"
                );
                world.batches -= 1;
                world.log += 1;
                world.processes[at].sees = world.log;
            });
            steps.push((Kind::Outside, next));
        }
        for (to, link) in self.links.iter().enumerate() {
            let asks = self.processes[to].part == Part::Asking && link.to_taker.is_empty();
            if !asks || link.giver != at || !link.giver_is_open {
                continue;
            }
            let (giver, next) = (Giver::Handed, Give::Listen);
            // The turn once the other process has claimed the right and has not offered it further.
            let turn = self.turn + 2;
            let mut next = self.set(at, Part::Giving { to, turn, giver, next, gone: false });
            next.processes[at].writes = false;
            next.links[to].to_taker.push(Word::Handed(self.turn + 1));
            // LOCK is held already while its handle is in transit.
            next.processes[to].holds = true;
            steps.push((Kind::Normal, next));
        }
    }

    fn give(
        &self,
        at: usize,
        (to, turn, giver, next, gone): (usize, u8, Giver, Give, bool),
        without: Without,
        steps: &mut Steps,
    ) {
        let link = &self.links[to];
        let heard = |world: &Self, event: Event| {
            let (giver, next) = giver.next(event);
            let gone = gone || event == Event::Gone;
            world.set(at, Part::Giving { to, turn, giver, next, gone })
        };
        let mut normal = |next: Self| steps.push((Kind::Normal, next));
        match next {
            Give::Listen => {
                if self.processes[at].asked_to_end {
                    normal(heard(self, Event::Stop));
                }
                if let Some(word) = link.to_giver.first().filter(|_| !gone) {
                    let event = match word {
                        Word::Ready => Event::Ready,
                        Word::Started => Event::Started,
                        _ => Event::Failed,
                    };
                    let next = heard(self, event);
                    normal(next.with(|world| world.links[to].told_giver()));
                } else if !link.taker_is_open && !gone {
                    normal(heard(self, Event::Gone));
                }
                // While another process has the right, this event would only lead to the next one.
                let waits = matches!(giver, Giver::Parted | Giver::Stalled);
                if waits && self.right.is_none() && self.turn <= turn {
                    normal(heard(self, Event::Moment));
                }
                if giver != Giver::Stalled {
                    steps.push((Kind::Late, heard(self, Event::Late)));
                }
            }
            Give::Offer => normal(self.with(|world| {
                world.offer(at);
                world.links[to].to_taker.push(Word::Go);
                let next = Give::Listen;
                world.processes[at].part = Part::Giving { to, turn, giver, next, gone };
            })),
            Give::Claim => {
                let mut next = self.clone();
                let event = match without {
                    Without::Claiming => Event::Claimed,
                    Without::Turns => next.claim(at, u8::MAX),
                    Without::Nothing => next.claim(at, turn),
                };
                // As in `give`, a late claim counts as if another process had the right.
                normal(heard(&next, if event == Event::Unable { Event::Held } else { event }));
            }
            Give::Refuse => {
                normal(self.set(at, Part::Giving { to, turn, giver, next: Give::Listen, gone }));
            }
            Give::Resume => normal(self.with(|world| {
                world.links[to].to_taker.push(Word::Failed);
                world.links[to].giver_is_open = false;
                let process = &mut world.processes[at];
                if process.sees == world.log || without == Without::Claiming {
                    (process.part, process.writes) = (Part::Serving, true);
                } else {
                    world.end(at);
                }
            })),
            Give::Follow => normal(self.with(|world| {
                world.processes[at].part = Part::Following { whom: to };
                world.processes[at].holds = false;
            })),
            Give::Leave | Give::End => normal(self.with(|world| {
                world.offer(at);
                world.end(at);
            })),
        }
    }

    fn take(
        &self,
        at: usize,
        (turn, taker, next): (u8, Taker, Take),
        without: Without,
        steps: &mut Steps,
    ) {
        let link = &self.links[at];
        let heard = |world: &Self, event: Event| {
            let (taker, next) = taker.next(event);
            world.set(at, Part::Taking { turn, taker, next })
        };
        let mut normal = |next: Self| steps.push((Kind::Normal, next));
        match (next, taker) {
            (Take::Listen, Taker::Ready) => {
                let event = match link.to_taker.first() {
                    Some(Word::Go) => Event::Go,
                    Some(_) => Event::Failed,
                    None if !link.giver_is_open => Event::Gone,
                    None => return,
                };
                let next = heard(self, event);
                normal(next.with(|world| world.links[at].told_taker()));
            }
            (Take::Listen, Taker::Orphaned) => {
                if self.right.is_none() && self.turn <= turn {
                    normal(heard(self, Event::Moment));
                }
                steps.push((Kind::Late, heard(self, Event::Late)));
            }
            (Take::Claim, _) => {
                let mut next = self.clone();
                let turn = if without == Without::Turns { u8::MAX } else { turn };
                let event = next.claim(at, turn);
                normal(heard(&next, event));
            }
            (Take::Begin, _) => {
                let unchanged = self.processes[at].sees == self.log;
                let next = self.with(|world| world.processes[at].writes = unchanged);
                normal(heard(&next, if unchanged { Event::Begun } else { Event::Unable }));
            }
            (Take::Start, _) => normal(self.with(|world| {
                world.links[at].to_giver.push(Word::Started);
                (world.processes[at].part, world.published) = (Part::Serving, at);
            })),
            (Take::End, _) => normal(self.with(|world| {
                world.links[at].to_giver.push(Word::Failed);
                world.end(at);
            })),
        }
    }
}
