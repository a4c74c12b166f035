//! The assembly: tests of the combinations of parts that users run. They are the cells of one
//! table: doors x stores x lives, on the real binary. A door is any interface of the program, such
//! as a route or a command. A life is the history of the archive, like an upgrade, or an event
//! during the requests, like a takeover. Each cell tests one door on one store in one life. The
//! door must answer correctly, and give the same answer as on an archive in files. The log must
//! have no panic, and the server's files, threads and connections must not grow with each request.
//! Each documented setting is tested, too.
//!
//! Parts that pass their own tests have failed in combination: a page on a database, a setting that
//! no test started the binary with. So every interface of the program (a route, a message, a
//! protocol, a command, a setting) has a cell here, or `listed` fails.
//!
//!     cargo test --test assembly                   each door on each store, each store in each life
//!     cargo test --test assembly -- postgres       the cells whose names contain this
//!     HARK_LONG=1 cargo test --test assembly       all pairs
//!
//! A cell that cannot run on this machine is ignored, with its reason, and never counts as passed.

mod adopted;
mod commands;
mod doors;
mod fixture;
mod listed;
mod lives;
mod moderation;
mod peers;
#[path = "../served.rs"]
#[allow(dead_code)]
mod served;
mod setting_values;
mod settings;
mod stores;
mod world;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use hark_testkit::runs::is_long;
use hark_testkit::wait::{PATIENCE, holds_within};
use parking_lot::Mutex;

use doors::{Answer, Door};
use lives::{LIVES, Life};
use stores::{STORES, StoreKind};
use world::World;

/// Maximum growth of the server's files, threads and connections in a round. The store opens some
/// files by itself, so the maximum is not zero.
const SLACK: usize = 4;
/// Number of requests to a door between two counts of the server's files, threads and connections.
const TIMES: usize = 10;
/// Maximum number of rounds of a door. A pool of connections may fill up in the first rounds, but
/// not in all rounds.
const ROUNDS: usize = 4;

/// The result of a cell.
#[derive(Clone, Debug)]
enum Cell {
    Passed,
    Failed(String),
    Ignored(&'static str),
}

/// A cell's place: life, store, and door.
type Place = (&'static str, &'static str, String);

/// The cells, and the answers on files.
#[derive(Default)]
struct Table {
    cells: Mutex<BTreeMap<Place, Cell>>,
    on_files: Mutex<BTreeMap<&'static str, String>>,
}

/// Doors that run on each store in each life even in a normal run, because most users use these
/// doors.
const ALWAYS: [&str; 8] = [
    "EVENT",
    "REQ",
    "/",
    "/healthz",
    "/metrics",
    "/store/v3/messages",
    "/whisper/messages",
    "stats",
];

thread_local! {
    static WHY: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Runs a function that may panic. Returns its result, or the panic's message.
pub(crate) fn caught<T>(run: impl FnOnce() -> T) -> Result<T, String> {
    std::panic::catch_unwind(AssertUnwindSafe(run)).map_err(|_| WHY.with_borrow(Clone::clone))
}

/// The number of worlds that run at a time: two per core, because a world mostly waits.
pub(crate) fn workers() -> usize {
    std::thread::available_parallelism().map_or(4, |cores| cores.get() * 2).min(8)
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.iter().any(|argument| argument == "--list") {
        println!("0 tests, 0 benchmarks");
        return ExitCode::SUCCESS;
    }
    let wanted = arguments.iter().find(|argument| !argument.starts_with('-'));
    let wanted = wanted.cloned().unwrap_or_default();
    let long = is_long();
    // A panic is not printed here, since a failed cell is reported once, in the table.
    std::panic::set_hook(Box::new(|info| {
        let at = info.location().map(ToString::to_string).unwrap_or_default();
        let text = info.payload_as_str().unwrap_or("a panic").to_owned();
        WHY.set(format!("{text} ({at})"));
    }));
    let begun = Instant::now();
    let table = Table::default();
    let doors = doors::all();
    for missing in listed::without_a_cell() {
        table.put(("the program", "has", missing), Cell::Failed("it needs a cell".into()));
    }
    table.fill(&doors, &wanted, long);
    println!("{}", table.drawn(&doors));
    let trials = if wanted.is_empty() || wanted.contains('[') || wanted == "settings" {
        let wanted = if wanted == "settings" { "" } else { &wanted };
        settings::try_all(long, wanted)
    } else {
        Vec::new()
    };
    println!("{} starts and reloads with one setting each", trials.len());
    for (name, result) in trials {
        let cell = result.map_or_else(Cell::Failed, |()| Cell::Passed);
        table.put(("settings", "files", name), cell);
    }
    table.sum(begun.elapsed())
}

impl Table {
    fn put(&self, place: Place, cell: Cell) {
        self.cells.lock().insert(place, cell);
    }

    /// Runs all cells.
    fn fill(&self, doors: &[&'static Door], wanted: &str, long: bool) {
        let mut worlds = Vec::new();
        for (l, life) in LIVES.into_iter().enumerate() {
            for (s, store) in STORES.into_iter().enumerate() {
                let chosen = |d: usize, door: &Door| {
                    // In each life, every door runs on at least one store. In the first life, every
                    // door runs on every store.
                    let covers =
                        l == 0 || (d + l) % STORES.len() == s || ALWAYS.contains(&door.name);
                    (long || covers)
                        && (life != Life::ShutDown || door.network != "command")
                        && name(life, store, door).contains(wanted)
                };
                let of: Vec<&'static Door> = doors
                    .iter()
                    .enumerate()
                    .filter(|(d, door)| chosen(*d, door))
                    .map(|(_, d)| *d)
                    .collect();
                if !of.is_empty() {
                    worlds.push((life, store, of));
                }
            }
        }
        // All other worlds are compared with the first, so the first has the doors of all worlds.
        let mut asked: Vec<&'static Door> = worlds.iter().flat_map(|(.., of)| of.clone()).collect();
        let mut seen = std::collections::BTreeSet::new();
        asked.retain(|door| seen.insert(door.name.to_owned() + door.network));
        asked.sort_by_key(|door| doors.iter().position(|known| std::ptr::eq(*known, *door)));
        if !asked.is_empty() {
            self.ask(Life::Fresh, StoreKind::Files, &asked);
        }
        worlds.retain(|(life, store, _)| (*life, *store) != (Life::Fresh, StoreKind::Files));
        let next = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..workers() {
                scope.spawn(|| {
                    while let Some((life, store, of)) =
                        worlds.get(next.fetch_add(1, Ordering::Relaxed))
                    {
                        self.ask(*life, *store, of);
                    }
                });
            }
        });
    }

    /// Makes a world, runs doors, and ends the world.
    fn ask(&self, life: Life, store: StoreKind, doors: &[&'static Door]) {
        let begun = Instant::now();
        let place = |name: &str| (life.name(), store.name(), name.to_owned());
        let all = |cell: &Cell| {
            for door in doors {
                self.put(place(&title(door)), cell.clone());
            }
        };
        if let Some(why) = store.missing().or_else(|| life.missing(store)) {
            return all(&Cell::Ignored(why));
        }
        let mut world = match caught(|| life.world(store)) {
            Ok(world) => world,
            Err(why) => return all(&Cell::Failed(format!("there is no such archive: {why}"))),
        };
        if life == Life::ShutDown {
            let ended = asked_to_the_end(&mut world, doors);
            all(&ended.map_or_else(Cell::Failed, |()| Cell::Passed));
        } else {
            for door in doors {
                let result = self.ask_door(&mut world, door);
                self.put(place(&title(door)), result.map_or_else(Cell::Failed, |()| Cell::Passed));
            }
            let ended = caught(|| world.end()).and_then(|ended| ended);
            self.put(place("its end"), ended.map_or_else(Cell::Failed, |()| Cell::Passed));
        }
        let _ = caught(|| drop(world));
        println!(
            "{} {}: {} doors in {:.1?}",
            life.name(),
            store.name(),
            doors.len(),
            begun.elapsed()
        );
    }

    /// Runs a door as often as its contract requires, and compares the answers.
    fn ask_door(&self, world: &mut World, door: &'static Door) -> Result<(), String> {
        for _ in 0..if door.is_brief { 2 } else { 1 } {
            let answer = caught(|| (door.ask)(world));
            // The panic is more informative than the client's error.
            if let Some(panic) = world.panics() {
                return Err(panic);
            }
            if let Answer::Same(text) = answer? {
                self.compare(door, text)?;
            }
        }
        if !door.is_brief {
            return Ok(());
        }
        let stays = no_growth(world, door);
        world.panics().map_or(stays, Err)
    }

    /// Compares an answer with the first answer on files.
    fn compare(&self, door: &'static Door, text: String) -> Result<(), String> {
        let mut on_files = self.on_files.lock();
        // The title includes the network, because doors of two networks have the same name.
        let key: &'static str = title(door).leak();
        match on_files.get(key) {
            None => drop(on_files.insert(key, text)),
            Some(expected) if *expected == text => {}
            Some(expected) => {
                let at = expected.bytes().zip(text.bytes()).position(|(one, other)| one != other);
                let at = at.unwrap_or(expected.len().min(text.len()));
                let part = |text: &str| -> String {
                    let bytes = &text.as_bytes()[at.saturating_sub(60)..];
                    String::from_utf8_lossy(bytes).chars().take(160).collect()
                };
                return Err(format!("{:?} instead of {:?}", part(&text), part(expected)));
            }
        }
        Ok(())
    }

    /// Returns the table of doors and stores, followed by the table of lives and stores.
    fn drawn(&self, doors: &[&'static Door]) -> String {
        let cells = self.cells.lock();
        let row = |title: &str, shown: &dyn Fn(StoreKind) -> String| {
            let columns = STORES.map(|store| format!("{:>11}", shown(store)));
            format!("{title:42}{}", columns.concat())
        };
        let mut rows = vec![row("", &|store| store.name().into())];
        let mut titles: Vec<String> = doors.iter().map(|door| title(door)).collect();
        titles.push("its end".into());
        for title in titles {
            rows.push(row(&title, &|store| match cells.get(&(
                Life::Fresh.name(),
                store.name(),
                title.clone(),
            )) {
                Some(Cell::Passed) => "ok".into(),
                Some(Cell::Failed(_)) => "FAILED".into(),
                Some(Cell::Ignored(_)) => "ignored".into(),
                None => String::new(),
            }));
        }
        for life in LIVES {
            rows.push(row(life.name(), &|store| {
                let place = (life.name(), store.name());
                let of = cells.iter().filter(|((of, on, _), _)| (*of, *on) == place);
                let of: Vec<&Cell> = of.map(|(_, cell)| cell).collect();
                let passed = of.iter().filter(|cell| matches!(cell, Cell::Passed)).count();
                let is_ignored = of.iter().all(|cell| matches!(cell, Cell::Ignored(_)));
                match (of.len(), is_ignored) {
                    (0, _) => String::new(),
                    (_, true) => "ignored".into(),
                    (all, false) => format!("{passed}/{all}"),
                }
            }));
        }
        rows.join("\n")
    }

    /// Prints the failed and the ignored cells, and the totals in the format of cargo's test
    /// harness.
    fn sum(&self, time: Duration) -> ExitCode {
        let cells = self.cells.lock();
        let (mut passed, mut failed, mut ignored) = (0, 0, 0);
        let mut reasons: BTreeMap<&str, usize> = BTreeMap::new();
        // A reason shared by many failed cells is printed once.
        let mut told: BTreeMap<(&str, &str, &str), Vec<&str>> = BTreeMap::new();
        for ((life, store, door), cell) in &*cells {
            match cell {
                Cell::Passed => passed += 1,
                Cell::Failed(why) => {
                    failed += 1;
                    told.entry((life, store, why)).or_default().push(door);
                }
                Cell::Ignored(why) => {
                    ignored += 1;
                    *reasons.entry(why).or_default() += 1;
                }
            }
        }
        for (why, count) in reasons {
            println!("ignored, {count} cells: {why}");
        }
        for ((life, store, why), doors) in told {
            println!("FAILED {store}, {life}, {}: {why}", doors.join(", "));
        }
        let ended = if failed == 0 { "ok" } else { "FAILED" };
        println!(
            "\ntest result: {ended}. {passed} passed; {failed} failed; {ignored} ignored; 0 measured; \
             0 filtered out; finished in {:.2}s",
            time.as_secs_f64()
        );
        if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

/// A door's name with its network.
fn title(door: &Door) -> String {
    format!("{} {}", door.network, door.name)
}

/// A cell's name.
fn name(life: Life, store: StoreKind, door: &Door) -> String {
    format!("{}, {}, {}", life.name(), store.name(), title(door))
}

/// Queries a door until the servers' files, threads and connections stop growing. A pool fills up
/// once, but a leak continues.
fn no_growth(world: &mut World, door: &'static Door) -> Result<(), String> {
    let mut counted = Vec::new();
    for _ in 0..ROUNDS {
        let before = world.held();
        for _ in 0..TIMES {
            caught(|| (door.ask)(world))?;
        }
        // A connection that a client has closed stays open in the server for a moment.
        if holds_within(Duration::from_secs(12), || world.held() <= before + SLACK) {
            return Ok(());
        }
        counted.extend([before, world.held()]);
    }
    Err(format!("it grows with each {TIMES} times: {counted:?} files, threads and connections"))
}

/// Queries doors without a pause while the servers end. Refused connections are the only allowed
/// failure.
fn asked_to_the_end(world: &mut World, doors: &[&'static Door]) -> Result<(), String> {
    // Doors that are not brief wait for events that no longer happen during shutdown.
    let asked: Vec<_> = doors.iter().filter(|door| door.is_brief).copied().collect();
    let is_over = AtomicBool::new(false);
    let answered: Vec<AtomicUsize> = asked.iter().map(|_| AtomicUsize::new(0)).collect();
    let why: Vec<Mutex<String>> = asked.iter().map(|_| Mutex::default()).collect();
    let ended = std::thread::scope(|scope| {
        for ((door, answered), why) in asked.iter().zip(&answered).zip(&why) {
            let (world, is_over) = (&*world, &is_over);
            scope.spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    match caught(|| (door.ask)(world)) {
                        Ok(_) => drop(answered.fetch_add(1, Ordering::Relaxed)),
                        Err(reason) => {
                            *why.lock() = reason;
                            break;
                        }
                    }
                }
            });
        }
        let waits = |(times, why): (&AtomicUsize, &Mutex<String>)| {
            times.load(Ordering::Relaxed) == 0 && why.lock().is_empty()
        };
        holds_within(PATIENCE, || !answered.iter().zip(&why).any(waits));
        for node in &world.nodes {
            node.server.signal("TERM");
        }
        // A door that waits for an answer of an ended server gives up after its timeout.
        let gone = || {
            world.nodes.iter().all(|node| {
                let stat = std::fs::read_to_string(format!("/proc/{}/stat", node.server.id()));
                stat.is_ok_and(|stat| stat.contains(") Z "))
            })
        };
        let have_ended = holds_within(PATIENCE, gone);
        is_over.store(true, Ordering::Relaxed);
        have_ended
    });
    let times = answered.iter().map(|times| times.load(Ordering::Relaxed));
    let never = asked.iter().zip(&why).zip(times).find(|(_, times)| *times == 0);
    if !ended {
        return Err(format!("the servers have not ended {PATIENCE:?} after SIGTERM"));
    }
    world.end()?;
    match never {
        Some(((door, why), _)) => {
            Err(format!("{} was not answered before the end: {}", title(door), why.lock()))
        }
        None => Ok(()),
    }
}
