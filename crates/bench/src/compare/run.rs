//! The measurement of one relay in one round.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;
use std::time::Duration;

use hark_codec::nostr::negentropy::NegentropyItem;
use hark_codec::record::Id;
use tokio::runtime::Runtime;

use super::args::{CompareArgs, SkippedPart};
use super::lookup::{HexId, missing};
use super::place::{self, ComparePlace};
use super::plan::PlannedRelay;
use super::relay::StartedRelay;
use super::sets::{self, FileNotes, NotCompared};
use super::table::CompareTable;
use super::tables::CompareTables;
use super::tool::{self, ToolResult};
use super::{kill, visible};
use crate::text::hex;

/// How long a process may take to end after its connections were closed.
const DEATH: Duration = Duration::from_millis(300);
/// Number of events of the file that are looked for after kill -9.
const EARLIER: usize = 1_000;

/// The facts of a relay that are not figures.
#[derive(Clone, Debug, Default)]
pub(super) struct RelayFacts {
    pub(super) version: Option<String>,
    /// Software and version in the information document (NIP-11).
    pub(super) software: Option<String>,
    pub(super) file_system: Option<String>,
}

/// The parts of a comparison that all relays share.
pub(super) struct SharedRun<'a> {
    pub(super) args: &'a CompareArgs,
    pub(super) place: &'a ComparePlace,
    pub(super) corpus: &'a Path,
    pub(super) set: FileNotes,
    pub(super) runtime: Runtime,
    pub(super) tables: CompareTables,
    pub(super) facts: BTreeMap<String, RelayFacts>,
    /// The events that each relay has reported as its set.
    pub(super) reported: Vec<(String, HashSet<Id>)>,
}

/// A relay that is being measured.
struct RelayRun<'a, 'b> {
    shared: &'a mut SharedRun<'b>,
    relay: StartedRelay,
    name: String,
    /// Whether the relay has refused events of the file.
    has_refused: bool,
}

impl SharedRun<'_> {
    /// Measures a relay. An error marks the relay's rows and ends only this relay's round.
    pub(super) fn measure(&mut self, planned: &PlannedRelay, number: usize) {
        let started = StartedRelay::new(self.place, planned, number);
        let result = started.and_then(|relay| {
            let name = planned.name.clone();
            let mut run = RelayRun { shared: self, relay, name, has_refused: false };
            let result = run.measure();
            result.map_err(|error| {
                // The connections of a process that dies are closed before the process has ended,
                // so the process gets some time to end.
                std::thread::sleep(DEATH);
                if run.relay.has_ended() {
                    let words = run.relay.last_words();
                    error.context(format!("the relay has ended; {words}"))
                } else {
                    error
                }
            })
        });
        if let Err(error) = result {
            self.tables.relays.mark(&planned.name, "", format!("{error:#}"));
        }
    }
}

impl RelayRun<'_, '_> {
    fn measure(&mut self) -> anyhow::Result<()> {
        let has = |part| self.shared.args.has(part);
        let (restart, cold, questions) =
            (has(SkippedPart::Restart), has(SkippedPart::Cold), has(SkippedPart::Questions));
        let (sets, visible, delivery) =
            (has(SkippedPart::Sets), has(SkippedPart::Visible), has(SkippedPart::Delivery));
        let kill = has(SkippedPart::Kill);
        let empty_start = self.relay.start(None)?;
        self.describe();
        self.load()?;
        let loaded_mb = self.relay.memory_mb();
        let stop_ms = self.relay.stop();
        let disk_bytes = place::disk_bytes(self.relay.data()) as f64;
        let start = self.relay.start(Some(&self.shared.runtime))?;
        if restart {
            let figures = stop_ms.map(|stop_ms| {
                [Some(empty_start.ready_ms), Some(stop_ms), Some(start.ready_ms), start.answer_ms]
            });
            put(&mut self.shared.tables.restart, &self.name, figures);
        }
        if cold {
            self.questions(&["--cold"])?;
        }
        if questions {
            self.questions(&[])?;
        }
        let events = self.shared.tables.events as f64;
        let size = [
            Some(disk_bytes / 1e6),
            Some(disk_bytes / events.max(1.0)),
            loaded_mb,
            self.relay.memory_mb(),
        ];
        self.shared.tables.size.add(&self.name, "", &size);
        if sets {
            self.sets();
        }
        if visible {
            self.progress("publish to found");
            let figures = self.shared.runtime.block_on(visible::measure(&self.relay.url));
            put(&mut self.shared.tables.visible, &self.name, figures);
        }
        if delivery {
            self.delivery();
        }
        if kill {
            self.progress("kill -9");
            let earlier = self.earlier();
            let figures = kill::measure(&mut self.relay, &self.shared.runtime, &earlier);
            if let Ok([_, lost, earlier_lost, _]) = &figures
                && (lost.is_some_and(|lost| lost > 0.0)
                    || earlier_lost.is_some_and(|lost| lost > 0.0))
            {
                self.shared.tables.kill.mark(&self.name, "", "acknowledged events were lost");
            }
            put(&mut self.shared.tables.kill, &self.name, figures);
        }
        self.relay.stop().map(|_| ())
    }

    fn progress(&self, part: &str) {
        eprintln!("{}: {part}", self.name);
    }

    fn describe(&mut self) {
        let facts = self.shared.facts.entry(self.name.clone()).or_default();
        facts.version = facts.version.take().or_else(|| self.relay.version());
        facts.file_system = Some(place::file_system(self.relay.data()));
    }

    /// Publishes the whole file.
    fn load(&mut self) -> anyhow::Result<()> {
        self.progress("load");
        let file = self.shared.corpus.to_string_lossy().into_owned();
        let connections = self.shared.args.connections.to_string();
        let result = tool::measure(&self.relay, &["ingest", &file, "--connections", &connections]);
        let result = result.inspect_err(|error| {
            self.shared.tables.load.mark(&self.name, "", format!("{error:#}"));
        })?;
        self.has_refused = result.figure("all", "refused") != Some(0.0);
        let facts = self.shared.facts.entry(self.name.clone()).or_default();
        facts.software = result.software().map(str::to_owned);
        add(&mut self.shared.tables.load, &self.name, "", &result, "all");
        for fault in result.faults() {
            self.shared.tables.load.mark(&self.name, "", fault);
        }
        Ok(())
    }

    /// Sends all types of questions.
    fn questions(&mut self, more: &[&str]) -> anyhow::Result<()> {
        let args = self.shared.args;
        let is_cold = !more.is_empty();
        self.progress(if is_cold { "cold questions" } else { "questions" });
        let (seconds, connections) = (args.seconds.to_string(), args.connections.to_string());
        let file = self.shared.corpus.to_string_lossy().into_owned();
        let mut all = vec!["query", &file, "--check", "--seconds", &seconds];
        all.extend(["--connections", &connections]);
        all.extend(more);
        if is_cold && args.drop_caches {
            all.push("--drop-caches");
        }
        // The texts of --shape choose among the types of questions that are not cold.
        for shape in args.shapes.iter().filter(|_| !is_cold) {
            all.extend(["--shape", shape]);
        }
        let result = tool::measure(&self.relay, &all);
        let tables = &mut self.shared.tables;
        let table = if is_cold { &mut tables.cold } else { &mut tables.questions };
        let result = match result {
            Ok(result) => result,
            Err(error) => {
                table.mark(&self.name, "all", format!("{error:#}"));
                // If the relay still runs, the other measurements follow.
                return if self.relay.has_ended() { Err(error) } else { Ok(()) };
            }
        };
        let names: Vec<String> = result.names().map(str::to_owned).collect();
        for name in &names {
            add(table, &self.name, name, &result, name);
        }
        for fault in result.faults() {
            let of = names.iter().find(|name| fault.starts_with(&format!("{name}: ")));
            let (case, reason) = match of {
                Some(name) => (name.as_str(), &fault[name.len() + 2..]),
                None => ("all", fault),
            };
            table.mark(&self.name, case, reason);
        }
        let case = if is_cold { "cold" } else { "all shapes" };
        let keys: Vec<&str> = tables.answers.columns.iter().map(|column| column.key).collect();
        let sums = result.sums("answers", &keys);
        tables.answers.add(&self.name, case, &sums);
        Ok(())
    }

    /// Compares sets of events.
    fn sets(&mut self) {
        self.progress("comparisons of sets");
        let held = match self.held() {
            Ok(held) => held,
            Err(error) => {
                self.shared.tables.sets.mark(&self.name, "no events", format!("{error:#}"));
                return;
            }
        };
        let of_others: Vec<(String, Vec<NegentropyItem>)> = {
            let set = &self.shared.set;
            let others = self.shared.reported.iter().filter(|(name, _)| *name != self.name);
            let case = |name: &String| format!("the events of {name}, 1 % missing");
            others.map(|(name, ids)| (case(name), set.thinned(ids))).collect()
        };
        let own = [
            ("no events".to_owned(), Vec::new()),
            ("the same events".to_owned(), self.shared.set.items.clone()),
            ("1 % different on each side".to_owned(), self.shared.set.changed()),
        ];
        for (case, items) in own.into_iter().chain(of_others) {
            let shared = &mut *self.shared;
            let compared = sets::compare(&self.relay.url, &shared.set, &held, items);
            match shared.runtime.block_on(compared) {
                Ok(found) => {
                    shared.tables.sets.add(&self.name, &case, &found.figures);
                    if !found.is_right {
                        let reason = "the comparison did not find exactly the differences";
                        shared.tables.sets.mark(&self.name, &case, reason);
                    }
                    let is_known = shared.reported.iter().any(|(name, _)| *name == self.name);
                    if case == "no events" && !is_known {
                        let ids = found.only_relay.into_iter().collect();
                        shared.reported.push((self.name.clone(), ids));
                    }
                }
                Err(error) if error.is::<NotCompared>() => {
                    shared.tables.note(&self.name, "sets", &error.to_string());
                }
                Err(error) => shared.tables.sets.mark(&self.name, &case, format!("{error:#}")),
            }
        }
    }

    /// Measures live delivery, and the relay that does nothing.
    fn delivery(&mut self) {
        self.progress("live delivery");
        let subscriptions = self.shared.args.subscriptions.to_string();
        let seconds = self.shared.args.seconds.to_string();
        let args = ["fanout", "--subscriptions", &subscriptions, "--seconds", &seconds];
        let table = &mut self.shared.tables.delivery;
        match tool::measure(&self.relay, &args) {
            Ok(result) => {
                add(table, &self.name, "", &result, "all");
                add(table, NOTHING, "", &result, "nothing");
                for fault in result.faults() {
                    table.mark(&self.name, "", fault);
                }
            }
            Err(error) => table.mark(&self.name, "", format!("{error:#}")),
        }
    }

    /// The events of the set that the relay holds: all of them, without those that it refused.
    fn held(&self) -> anyhow::Result<HashSet<Id>> {
        let items = &self.shared.set.items;
        let mut refused = HashSet::new();
        if self.has_refused {
            let ids: Vec<HexId> = items.iter().filter_map(hex_id).collect();
            refused = self.shared.runtime.block_on(missing(&self.relay.url, &ids))?;
        }
        let is_refused =
            |item: &&NegentropyItem| hex_id(item).is_some_and(|id| refused.contains(&id));
        Ok(items.iter().filter(|item| !is_refused(item)).map(|item| item.id).collect())
    }

    /// Ids of some events of the file, which was published long before.
    fn earlier(&self) -> Vec<HexId> {
        let items = &self.shared.set.items;
        let step = (items.len() / EARLIER).max(1);
        items.iter().step_by(step).filter_map(hex_id).collect()
    }
}

/// The id of an event, as hex digits.
fn hex_id(item: &NegentropyItem) -> Option<HexId> {
    hex(&item.id).as_bytes().try_into().ok()
}

/// Adds the figures of a relay to a table, or marks its row with the error.
fn put<const N: usize>(
    table: &mut CompareTable,
    relay: &str,
    figures: anyhow::Result<[Option<f64>; N]>,
) {
    match figures {
        Ok(figures) => table.add(relay, "", &figures),
        Err(error) => table.mark(relay, "", format!("{error:#}")),
    }
}

/// The name of the relay that does nothing, in tables.
pub(super) const NOTHING: &str = "(nothing)";

/// Adds a row of a benchmark's result to a table whose columns have the same keys.
pub(super) fn add(
    table: &mut CompareTable,
    relay: &str,
    case: &str,
    result: &ToolResult,
    row: &str,
) {
    let columns = table.columns.iter();
    let figures: Vec<_> = columns.map(|column| result.figure(row, column.key)).collect();
    if figures.iter().any(Option::is_some) {
        table.add(relay, case, &figures);
    }
}
