//! The result of a comparison: the tables, the relays, and the machine.

use std::collections::BTreeMap;
use std::time::SystemTime;

use super::args::CompareArgs;
use super::plan::PlannedRelay;
use super::run::{RelayFacts, SharedRun};
use super::table::CompareTable;
use crate::report::BenchReport;
use crate::target::describe_machine;

/// Facts that the figures do not show.
pub(super) const NOT_MEASURED: &str = "Not measured: a power failure or a full or failing disk; \
    many clients with slow networks, TLS, compression and a proxy; reading and writing at the same \
    time; weeks of operation, with the growth of memory and files; replication, backups and \
    upgrades; protection against abuse; the policies, searches and other features that only some \
    of the relays have; other machines, other file systems and other mixes of events. The relays, \
    the bench and the kernel share one machine, so throughput and latency also show how much CPU \
    the bench leaves; CPU times depend on it least. Settings decide much: each relay runs with the \
    settings that are listed, and its author may know better ones.";

/// A relay as it was compared.
pub(super) struct ComparedEntry {
    pub(super) planned: PlannedRelay,
    pub(super) facts: RelayFacts,
}

/// The whole result.
pub(super) struct CompareResult<'a> {
    pub(super) at_s: u64,
    /// The machine, the events and the flags.
    pub(super) settings: Vec<(String, String)>,
    pub(super) relays: Vec<ComparedEntry>,
    pub(super) tables: Vec<&'a CompareTable>,
    pub(super) notes: Vec<String>,
}

impl<'a> CompareResult<'a> {
    pub(super) fn new(
        args: &CompareArgs,
        relays: Vec<PlannedRelay>,
        shared: &'a SharedRun<'_>,
    ) -> Self {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let mut settings: Vec<(String, String)> = Vec::new();
        let mut set = |key: &str, value: String| settings.push((key.to_owned(), value));
        let mut machine = BenchReport::new("compare", &[]);
        describe_machine(&mut machine);
        machine.settings().for_each(|(key, value)| set(key, value));
        set("memory", memory());
        match &args.corpus {
            Some(corpus) => set("corpus", corpus.display().to_string()),
            None => set("corpus", format!("hark bench gen --natural --seed {}", args.seed)),
        }
        set("events", shared.tables.events.to_string());
        set("rounds", args.rounds.to_string());
        set("seconds", args.seconds.to_string());
        set("connections", args.connections.to_string());
        set("subscriptions", args.subscriptions.to_string());
        set("drop_caches", args.drop_caches.to_string());
        let skipped: Vec<String> = args.skip.iter().map(|part| format!("{part:?}")).collect();
        set("skipped", skipped.join(", ").to_lowercase());
        let mut facts: BTreeMap<String, RelayFacts> = shared.facts.clone();
        let entry = |planned: PlannedRelay| {
            let facts = facts.remove(&planned.name).unwrap_or_default();
            ComparedEntry { planned, facts }
        };
        let relays: Vec<ComparedEntry> = relays.into_iter().map(entry).collect();
        let mut notes = shared.tables.notes.clone();
        for relay in &relays {
            if relay.facts.file_system.as_deref() == Some("tmpfs") {
                notes.push(format!(
                    "{}: its data was in memory (tmpfs), so nothing was durable; see --work",
                    relay.planned.name
                ));
            }
        }
        Self {
            at_s: now.map_or(0, |now| now.as_secs()),
            settings,
            relays,
            tables: shared.tables.all().collect(),
            notes,
        }
    }

    /// The name of the first relay, to which all ratios refer.
    pub(super) fn first(&self) -> &str {
        self.relays.first().map_or("", |relay| &relay.planned.name)
    }
}

/// Returns the machine's memory, such as `16 GB`.
fn memory() -> String {
    let info = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let total = info.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kib = total.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kib.map_or_else(|| "unknown".into(), |kib| crate::words::bytes(kib * 1024))
}
