//! `hark bench compare`: several relays, each started alone on the same events, in rounds whose
//! order alternates. The figures are those of the other benchmarks, which run as processes; only
//! starts, kills, comparisons of sets and the time until an event is found are measured here.

mod args;
mod kill;
mod lookup;
mod output;
mod page;
mod place;
mod plan;
mod relay;
mod result;
mod run;
mod sets;
mod table;
mod tables;
mod tool;
mod visible;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::bail;
use hark_codec::nostr::negentropy::NegentropyItem;

pub(crate) use self::args::CompareArgs;
use self::place::ComparePlace;
use self::result::CompareResult;
use self::run::{NOTHING, SharedRun};
use self::sets::FileNotes;
use self::tables::CompareTables;
use crate::expected;
use crate::generate;
use crate::lines::EventFile;
use crate::null::NullRelay;
use crate::text::Vocabulary;

/// Maximum number of events in a comparison of sets. Relays have such a limit, too.
const SET_EVENTS: usize = 200_000;
/// The kind of the events in comparisons of sets.
const NOTES: u16 = 1;

pub(crate) fn run(args: &CompareArgs) -> anyhow::Result<ExitCode> {
    let relays = plan::read(&args.file, &args.relays)?;
    let place = ComparePlace::new(args.work.as_deref())?;
    let corpus = corpus(args, &place)?;
    let events = EventFile::open(&corpus)?.count()?;
    let mut shared = SharedRun {
        args,
        place: &place,
        corpus: &corpus,
        set: compared_set(&corpus)?,
        runtime: tokio::runtime::Builder::new_current_thread().enable_all().build()?,
        tables: CompareTables::new(events),
        facts: BTreeMap::new(),
        reported: Vec::new(),
    };
    for round in 0..args.rounds {
        let mut order: Vec<usize> = (0..relays.len()).collect();
        if round % 2 == 1 {
            order.reverse();
        }
        for at in order {
            eprintln!("round {} of {}: {}", round + 1, args.rounds, relays[at].name);
            shared.measure(&relays[at], at);
        }
        if let Err(error) = load_nothing(&mut shared) {
            shared.tables.load.mark(NOTHING, "", format!("{error:#}"));
        }
    }
    let mut names: Vec<String> = relays.iter().map(|relay| relay.name.clone()).collect();
    names.push(NOTHING.into());
    shared.tables.sort(&names);
    let result = CompareResult::new(args, relays, &shared);
    result.publish(args)?;
    Ok(if shared.tables.has_marks() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Returns the file of events, which is made if none is given.
fn corpus(args: &CompareArgs, place: &ComparePlace) -> anyhow::Result<PathBuf> {
    if let Some(corpus) = &args.corpus {
        if !corpus.is_file() {
            bail!("{} is no file of events", corpus.display());
        }
        return Ok(std::path::absolute(corpus)?);
    }
    let path = place.path().join(format!("events-{}-{}.jsonl", args.events, args.seed));
    if !path.exists() {
        eprintln!("making {} events", args.events);
        generate::write_file(&path, args.events, args.seed, (Vocabulary::Natural, true))?;
    }
    Ok(path)
}

/// Reads the events for the comparisons of sets.
fn compared_set(corpus: &Path) -> anyhow::Result<FileNotes> {
    let newest = expected::newest(corpus, NOTES, SET_EVENTS)?;
    let since = newest.first().map_or(0, |(time, _)| *time);
    let items = newest.into_iter().map(|(time, id)| NegentropyItem { time, id }).collect();
    Ok(FileNotes { filter: format!(r#"{{"kinds":[{NOTES}],"since":{since}}}"#), items })
}

/// Publishes the file to the relay that does nothing.
fn load_nothing(shared: &mut SharedRun<'_>) -> anyhow::Result<()> {
    let null = NullRelay::start()?;
    let (file, connections) = (shared.corpus.to_string_lossy(), shared.args.connections);
    let args = ["ingest", &file, "--connections", &connections.to_string()].map(str::to_owned);
    let target = ["--url", &null.url.text, "--pid", &null.id().to_string()].map(str::to_owned);
    let result = tool::run(&[&args[..], &target].concat())?;
    run::add(&mut shared.tables.load, NOTHING, "", &result, "all");
    Ok(())
}
