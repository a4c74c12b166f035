//! `hark stats`: the archive's size and state, from its files, and the statistics of a running
//! server.

use std::process::ExitCode;

use clap::Args;
use hark_server::control::fields;
use hark_server::growth::{self, GrowthLog};
use hark_server::words::{moment, signed, span};
use serde_json::{Value, json};

use crate::location::ArchiveLocation;
use crate::print;
use crate::when::now_s;

#[derive(Debug, Args)]
pub(crate) struct StatsArgs {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

pub(crate) fn run(args: &StatsArgs, location: &ArchiveLocation) -> anyhow::Result<ExitCode> {
    let mut stats = location.read()?.stats();
    // If the server does not answer, its statistics are omitted.
    let server = location.control().ok().flatten();
    let served = server.is_some();
    let live = server.and_then(|mut server| server.stats().ok());
    // Opening an archive reads few records, so a running server may have found more damaged
    // records.
    let found = live.as_ref().and_then(|live| live["damaged"].as_u64()).unwrap_or_default();
    stats.damaged = stats.damaged.max(found);
    let log = GrowthLog::read(&location.data).unwrap_or_else(|error| {
        let file = location.data.join(growth::FILE);
        print::note!("hark: the growth is not known: {}: {error}", file.display());
        GrowthLog::default()
    });
    let growth = log.of(location.network.name(), now_s());
    let full_in_days = stats.free_bytes.and_then(|free| log.days_until_full(free, now_s()));
    if args.json {
        let mut json = Value::Object(fields(&stats));
        json["data"] = json!(location.data);
        json["in_database"] = json!(!location.facts().is_in_directory);
        json["growth"] = json!(growth.map(|growth| json!({
            "records_per_day": growth.records_per_day.round(),
            "bytes_per_day": growth.bytes_per_day.round(),
            "measured_s": growth.measured_s,
        })));
        json["full_in_days"] = json!(full_in_days.map(f64::round));
        json["server_running"] = json!(served);
        json["server"] = json!(live.as_ref().map(|live| of_server(live, &json)));
        print::line(&json.to_string())?;
        return Ok(ExitCode::SUCCESS);
    }
    let plain = String::new;
    let second = location.network.nature().units_per_s;
    let time = |name, at: Option<u64>| match at.map(|at| at / second) {
        None => (name, "-".into(), plain()),
        Some(at) => (name, moment(at), format!("{at} seconds since 1970")),
    };
    let average = stats.bytes.checked_div(stats.records).unwrap_or(0);
    print::line(&format!(
        "{}{}",
        if location.facts().is_in_directory {
            location.shelf().display().to_string()
        } else {
            "in a database".into()
        },
        if served { ", a server is running" } else { "" }
    ))?;
    let (gained, measured) = growth.map_or(("-".into(), plain()), |growth| {
        let records = signed(growth.records_per_day, print::number);
        let words = format!(
            "and {records} {}, measured over {}",
            location.network.records(),
            span(growth.measured_s)
        );
        (signed(growth.bytes_per_day, print::bytes), words)
    });
    let days = full_in_days.map_or("-".into(), |days| print::count(days as u64, "day"));
    print::line(&print::table(&[
        (location.network.records(), print::number(stats.records), plain()),
        ("deleted, not given back", print::number(stats.dead), print::bytes(stats.dead_bytes)),
        ("on disk", print::bytes(stats.bytes), format!("{average} bytes each")),
        ("  log", print::bytes(stats.log_bytes), plain()),
        ("  indices", print::bytes(stats.index_bytes), plain()),
        ("free on the disk", stats.free_bytes.map_or("-".into(), print::bytes), plain()),
        ("grows a day by", gained, measured),
        ("the disk is full in", days, plain()),
        ("segments", print::number(stats.segments), plain()),
        ("not in a segment yet", print::number(stats.head_records), plain()),
        time("oldest", stats.oldest),
        time("newest", stats.newest),
        ("found damaged", print::number(stats.damaged), plain()),
    ]))?;
    if let Some(live) = live {
        print::line("the server, since it was started")?;
        print::line(&table(&live))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the server's statistics that are not in the statistics of the files.
fn of_server(live: &Value, of_files: &Value) -> Value {
    let own = |name: &&String| of_files.get(name.as_str()).is_none() && *name != "rows";
    let fields = live.as_object().into_iter().flatten();
    let fields = fields.filter(|(name, _)| own(name));
    Value::Object(fields.map(|(name, value)| (name.clone(), value.clone())).collect())
}

/// Returns the row about the scrub, the slow background check of the archive.
fn scrub(scrub: &Value) -> Option<(&'static str, String, String)> {
    let number = |name: &str| scrub[name].as_u64();
    let (read, total) = (number("pass_bytes")?, number("total_bytes")?.max(1));
    let share = format!("{:.1} %", (read as f64 / total as f64).min(1.0) * 100.0);
    let last = match number("last_pass_s") {
        None => "of the first pass".into(),
        Some(age_s) => {
            let faults = number("last_faults").unwrap_or_default();
            format!("of this pass; the last ended {}, faults: {faults}", print::ago(age_s))
        }
    };
    Some(("slow check", share, last))
}

fn table(live: &Value) -> String {
    let number = |name: &str| live[name].as_u64().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let plain = String::new;
    let mut rows = vec![("up since", moment(number("since")), text(&live["trouble"]))];
    let of_door: Vec<_> = live["rows"].as_array().into_iter().flatten().collect();
    let of_door = of_door
        .iter()
        .map(|row| (row[0].as_str().unwrap_or_default(), text(&row[1]), text(&row[2])));
    rows.extend(of_door);
    rows.push(("memory", print::bytes(number("resident_bytes")), plain()));
    let config = &live["config"];
    if config.is_object() {
        let read = moment(config["in_force_since"].as_u64().unwrap_or_default());
        rows.push(("configuration read", read, plain()));
        if let Some(reason) = config["refused"].as_str() {
            let at = moment(config["read_at"].as_u64().unwrap_or_default());
            let reason = reason.lines().next().unwrap_or_default();
            rows.push(("  a newer one refused", at, reason.into()));
        }
    }
    if let Some(reason) = live["maintenance_failed"].as_str() {
        rows.push(("maintenance", "fails".into(), reason.into()));
    }
    for file in live["damaged_files"].as_array().into_iter().flatten() {
        rows.push(("damaged", plain(), file.as_str().unwrap_or_default().into()));
    }
    rows.extend(scrub(&live["scrub"]));
    let mirror = &live["mirror"];
    if mirror.is_object() {
        let number = |name: &str| mirror[name].as_u64().unwrap_or_default();
        let in_step = mirror["in_step"].as_bool().unwrap_or_default();
        let state = mirror["trouble"].as_str().unwrap_or(if in_step {
            "in step"
        } else {
            "getting the records that it lacks"
        });
        let lag = format!("{:.1} s behind", number("behind_ms") as f64 / 1e3);
        rows.push(("mirror", lag, state.to_owned()));
        rows.push(("  waits for it", print::number(number("queued")), plain()));
        rows.push(("  only it has", print::number(number("extra")), plain()));
    }
    print::table(&rows)
}
