//! Explores every order of events between three processes. One process serves at first. The others
//! start at any time, to take over or because no server runs. At every step, any process may be
//! killed, asked to end or suspended permanently, may fail to open the archive, and may take too
//! long.
//!
//! The decisions are made by the server's own code. The rest of the world is a model: the locks,
//! the messages in transit between two processes, and the length of the log.

use std::collections::HashMap;

use self::world::{MoveKind, PROCESSES, ProcessRole, Without, World};
use super::{NewProcess, NewProcessStep, OldProcessStep};

mod world;

/// The results of the exploration.
#[derive(Default)]
struct Exploration {
    /// Number of paths from each world to an end; `None` while the paths are being counted.
    ways: HashMap<World, Option<f64>>,
    steps: u64,
    /// How often a process was in a state that it reaches only after a fault.
    stalled: u64,
    resumed: u64,
    orphans: u64,
    fault: Option<&'static str>,
}

impl Exploration {
    /// Walks all paths from `world` and returns their number. Stops at the first violated
    /// invariant, and stores it in `fault`.
    fn walk(&mut self, world: &World, without: Without) -> f64 {
        if let Some(known) = self.ways.get(world) {
            return known.expect("no way leads back");
        }
        self.fault = self.fault.or(world.is_safe().err());
        let steps = world.steps(without);
        let kinds = |kind| steps.iter().filter(|(of, _)| *of == kind).count();
        if kinds(MoveKind::Normal) + kinds(MoveKind::Late) == 0 && !world.is_settled() {
            self.fault = self.fault.or(Some("a process waits forever"));
        }
        self.note(world);
        self.ways.insert(world.clone(), None);
        let mut ways = if steps.is_empty() { 1.0 } else { 0.0 };
        for (_, next) in &steps {
            if self.fault.is_some() {
                break;
            }
            self.steps += 1;
            ways += self.walk(next, without);
        }
        self.ways.insert(world.clone(), Some(ways));
        ways
    }

    fn note(&mut self, world: &World) {
        for process in &world.processes {
            match process.part {
                ProcessRole::Giving { next: OldProcessStep::Refuse, .. } => self.stalled += 1,
                ProcessRole::Giving { next: OldProcessStep::Resume, .. } => self.resumed += 1,
                ProcessRole::Taking {
                    taker: NewProcess::Orphaned,
                    next: NewProcessStep::Start,
                    ..
                } => self.orphans += 1,
                _ => {}
            }
        }
    }
}

#[test]
fn in_no_order_of_events_do_two_processes_write_and_none_waits_for_ever() {
    let (faults, batches) = if std::env::var_os("HARK_LONG").is_some() { (3, 2) } else { (2, 1) };
    let mut walk = Exploration::default();
    let ways = walk.walk(&World::new(faults, batches), Without::Nothing);
    assert_eq!(walk.fault, None);
    assert!(walk.stalled > 0 && walk.resumed > 0 && walk.orphans > 0);
    println!(
        "{PROCESSES} processes, {faults} faults, {batches} batches written: {} states, {} steps, {ways:.1e} \
         orders of events",
        walk.ways.len(),
        walk.steps
    );
}

#[test]
fn a_process_that_goes_on_without_the_right_to_write_would_be_found() {
    let mut walk = Exploration::default();
    walk.walk(&World::new(1, 1), Without::Claiming);
    assert_eq!(walk.fault, Some("a process writes without the right to write"));
}

#[test]
fn a_process_that_comes_late_and_claims_what_is_not_its_own_would_be_found() {
    let mut walk = Exploration::default();
    walk.walk(&World::new(1, 1), Without::Turns);
    assert_eq!(walk.fault, Some("a process waits forever"));
}
