//! `hark bench answers`: publishes hard events to any relay, asks random questions, and compares
//! every answer with the right answer.

mod corpus;
mod oracle;
mod outcome;
mod questions;

use std::collections::BTreeSet;
use std::process::ExitCode;

use anyhow::bail;
use corpus::HardCorpus;
use hark_codec::crypto::{KeyPair, sha256};
use oracle::{AnswerOracle, OracleFilter};
use outcome::{AnswersReport, WrongAnswer};
use questions::QuestionSource;
use serde_json::{Value, json};

use crate::args::AnswersArgs;
use crate::probe::client::{CountEnd, ProbeClient, QuestionEnd};
use crate::probe::end::{ProbeEnd, ProbeResult};
use crate::probe::left::{LeftEvent, clean_up};
use crate::probe::refusal::prefix_of;
use crate::probe::run::{ProbeRun, now, random_seed};

/// One in this many questions is a COUNT.
const COUNT_EVERY: u64 = 10;
/// Seconds of a day.
const DAY_S: u64 = 86_400;
/// Prefixes of refusals that are right for some of the events.
const KNOWN_REFUSALS: [&str; 3] = ["duplicate", "replaced", "deleted"];

pub(crate) fn run(args: &AnswersArgs) -> anyhow::Result<ExitCode> {
    let seed = match args.seed {
        Some(seed) => seed,
        None => u64::from_le_bytes(*random_seed()?.first_chunk().unwrap_or(&[0; 8])) >> 16,
    };
    let to = args.to.unwrap_or_else(|| now() / DAY_S * DAY_S);
    if to > now() || to < 10 * DAY_S {
        bail!("--to must be a time in the past");
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let report = runtime.block_on(async {
        let secret = sha256(format!("hark bench answers {seed}").as_bytes());
        let run = args.probe.start(&args.url, Some(secret)).await?;
        check(&run, args, seed, to).await
    })?;
    report.publish(args.json)
}

/// Publishes the events, asks the questions, and deletes the events.
async fn check(
    run: &ProbeRun,
    args: &AnswersArgs,
    seed: u64,
    to: u64,
) -> anyhow::Result<AnswersReport> {
    let corpus = HardCorpus::new(run, args.events, to)?;
    // On a relay that admits only members, only a member may read.
    let reader = match &run.member {
        Some(keys) => keys.clone(),
        None => run.keys("reader")?,
    };
    let mut report = AnswersReport {
        url: run.url.text.clone(),
        relay: run.info.software(),
        seed,
        to,
        ..AnswersReport::default()
    };
    let mut oracle = AnswerOracle::default();
    let mut left = Vec::new();
    if args.ask_only {
        let events = corpus.events.iter().enumerate();
        let held = events.filter(|(number, _)| !args.without.contains(number));
        held.for_each(|(_, (event, _))| oracle.add(event));
    } else {
        if has_events_of(run, &reader, &corpus).await.map_err(|end| stopped("asking", end))? {
            bail!(
                "the relay has events of an earlier run with this seed; choose another --seed, or \
                 use --ask-only after --load-only"
            );
        }
        let loaded = load(run, &corpus, &mut oracle, &mut report).await;
        left = loaded.map_err(|end| stopped("publishing", end))?;
    }
    report.stored = oracle.len();
    if !args.load_only {
        let mut source = QuestionSource::new(&corpus, seed, run.info.limit("max_limit"));
        let mut client = ProbeClient::open(run).await.map_err(|end| stopped("asking", end))?;
        let counts = run.info.lists(45) == Some(true);
        for number in 0..args.questions {
            let filters = source.next();
            let wrong = if counts && number % COUNT_EVERY == 0 {
                report.counted += 1;
                count(&reader, &mut client, &oracle, number, filters).await
            } else {
                report.asked += 1;
                ask(&reader, &mut client, &oracle, number, &filters).await
            };
            report.wrong.extend(wrong.map_err(|end| stopped("asking", end))?);
        }
    }
    if args.load_only || args.ask_only || args.leave {
        return Ok(report);
    }
    report.remaining = clean_up(run, &left).await.ok();
    Ok(report)
}

/// The error of a run that could not continue.
fn stopped(doing: &str, end: ProbeEnd) -> anyhow::Error {
    let (ProbeEnd::Failed(why) | ProbeEnd::Unsupported(why) | ProbeEnd::Undecided(why)) = end;
    anyhow::anyhow!("{doing} was stopped: {why}")
}

/// Whether the relay has any event of the run's keys, such as a request to vanish.
async fn has_events_of(run: &ProbeRun, reader: &KeyPair, corpus: &HardCorpus) -> ProbeResult<bool> {
    let mut client = ProbeClient::open(run).await?;
    // A member may have published other events too, so the search is for the tag of the run.
    let filter = match &run.member {
        Some(_) => json!({"#t": [corpus.name], "limit": 1}),
        None => json!({"authors": corpus.authors(), "limit": 1}),
    };
    Ok(!client.ask_as(reader, &[filter]).await?.events.is_empty())
}

/// Publishes the events one after the other. Returns the accepted events.
async fn load(
    run: &ProbeRun,
    corpus: &HardCorpus,
    oracle: &mut AnswerOracle,
    report: &mut AnswersReport,
) -> ProbeResult<Vec<LeftEvent>> {
    let mut client = ProbeClient::open(run).await?;
    let mut left = Vec::new();
    for (number, (event, keys)) in corpus.events.iter().enumerate() {
        let answer = client.publish_as(keys, &event.json()).await?;
        report.published += 1;
        if answer.accepted {
            left.push(LeftEvent { event: event.clone(), keys: keys.clone() });
        }
        // With these prefixes, a relay refuses replaced and deleted versions. The oracle gets these
        // events, too, and decides itself which of them remain. A refusal for another reason is the
        // relay's own policy.
        let is_known = prefix_of(&answer.message).is_some_and(|it| KNOWN_REFUSALS.contains(&it));
        if answer.accepted || is_known {
            oracle.add(event);
        } else {
            let mut with = oracle.clone();
            with.add(event);
            if with.has(&event.id) && !oracle.has(&event.id) {
                *report.refused.entry(answer.message).or_default() += 1;
                report.refused_numbers.push(number);
            }
        }
    }
    Ok(left)
}

/// Asks a question. Returns the answer if it is wrong.
async fn ask(
    reader: &KeyPair,
    client: &mut ProbeClient,
    oracle: &AnswerOracle,
    question: u64,
    filters: &[OracleFilter],
) -> ProbeResult<Option<WrongAnswer>> {
    let sent: Vec<Value> = filters.iter().map(OracleFilter::json).collect();
    let answer = client.ask_as(reader, &sent).await?;
    let (expected, found) = (oracle.answer(filters), answer.ids());
    let (wanted, got): (BTreeSet<_>, BTreeSet<_>) =
        (expected.iter().collect(), found.iter().collect());
    let (fault, text) = match &answer.end {
        QuestionEnd::Closed(why) => ("refused", why.clone()),
        QuestionEnd::Eose(_) if wanted.difference(&got).next().is_some() => {
            ("missing", String::new())
        }
        QuestionEnd::Eose(_) if got.difference(&wanted).next().is_some() => {
            ("unexpected", String::new())
        }
        QuestionEnd::Eose(_) if got.len() < found.len() => ("twice", String::new()),
        // NIP-01 defines an order only for the events of a single filter.
        QuestionEnd::Eose(_) if filters.len() == 1 && found != expected => ("order", String::new()),
        QuestionEnd::Eose(_) => return Ok(None),
    };
    let filters = Value::Array(sent);
    Ok(Some(WrongAnswer { question, fault, filters, expected, found, text }))
}

/// Sends a COUNT. Returns the answer if it is wrong.
async fn count(
    reader: &KeyPair,
    client: &mut ProbeClient,
    oracle: &AnswerOracle,
    question: u64,
    mut filters: Vec<OracleFilter>,
) -> ProbeResult<Option<WrongAnswer>> {
    for filter in &mut filters {
        filter.limit = None;
    }
    let sent: Vec<Value> = filters.iter().map(OracleFilter::json).collect();
    let expected = oracle.answer(&filters);
    let (fault, text) = match client.count_as(reader, &sent).await? {
        CountEnd::Counted(body)
            if body["approximate"] == true || body["count"] == expected.len() =>
        {
            return Ok(None);
        }
        CountEnd::Counted(body) => ("count", body.to_string()),
        CountEnd::Closed(why) => ("refused", why),
    };
    let (filters, found) = (Value::Array(sent), Vec::new());
    Ok(Some(WrongAnswer { question, fault, filters, expected, found, text }))
}
