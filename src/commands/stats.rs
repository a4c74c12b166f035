//! `hark stats`: the archive's size and state, as its files say.

use std::process::ExitCode;

use hark_archive::Store;
use serde_json::json;

use crate::cli::StatsArgs;
use crate::place::Place;
use crate::print;

pub(crate) fn run(args: &StatsArgs, place: &Place) -> anyhow::Result<ExitCode> {
    let stats = place.read()?.stats();
    let served = place.server().is_ok_and(|server| server.is_some());
    if args.json {
        let json = json!({
            "data": place.data,
            "server_running": served,
            "records": stats.records,
            "dead": stats.dead,
            "dead_bytes": stats.dead_bytes,
            "bytes": stats.bytes,
            "log_bytes": stats.log_bytes,
            "index_bytes": stats.index_bytes,
            "head_records": stats.head_records,
            "segments": stats.segments,
            "oldest": stats.oldest,
            "newest": stats.newest,
            "damaged": stats.damaged,
        });
        print::line(&json.to_string())?;
        return Ok(ExitCode::SUCCESS);
    }
    let plain = String::new;
    let time = |at: Option<u64>| at.map_or_else(|| "-".into(), |seconds| seconds.to_string());
    let average = stats.bytes.checked_div(stats.records).unwrap_or(0);
    print::line(&format!(
        "{}{}",
        place.shelf().display(),
        if served { ", a server is running" } else { "" }
    ))?;
    print::line(&print::table(&[
        ("events", print::number(stats.records), plain()),
        ("deleted, not given back", print::number(stats.dead), print::bytes(stats.dead_bytes)),
        ("on disk", print::bytes(stats.bytes), format!("{average} bytes an event")),
        ("  log", print::bytes(stats.log_bytes), plain()),
        ("  indices", print::bytes(stats.index_bytes), plain()),
        ("segments", print::number(stats.segments), plain()),
        ("not in a segment yet", print::number(stats.head_records), plain()),
        ("oldest", time(stats.oldest), "seconds since 1970".into()),
        ("newest", time(stats.newest), plain()),
        ("found damaged", print::number(stats.damaged), plain()),
    ]))?;
    Ok(ExitCode::SUCCESS)
}
