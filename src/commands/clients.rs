//! `hark clients`: lists the open connections of the running server.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::io::IsTerminal as _;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::{Args, ValueEnum};
use hark_archive::clock::Clock;
use hark_server::control::ControlClient;
use serde_json::Value;

use crate::location::ArchiveLocation;
use crate::print;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  hark clients
  hark clients --sort rows --limit 10
  hark clients --filter 198.51.100.
  hark clients --filter npub10elfcs4
  hark clients --sort bytes --watch
  hark clients --json | wc -l

Each row is a connection: its number, the address, the network, the verified name (NIP-05) of a
proved key or else the first proved key, the group in [rates] whose rates apply, the name of the
client's program, the open subscriptions, the events that were accepted / refused, the questions
that were asked / the messages without an event that were refused, the rows that the questions have
visited, the bytes from and to the client, and the time since the connection was opened. `hark kick`
closes connections.

The list has no connections of an earlier process that still serves clients after a takeover.

With --json, each line is an object with the fields of a row, and --limit is 0 by default.")]
pub(crate) struct ClientsArgs {
    /// The order: the most visited rows, the most events, the most bytes, or the oldest connections
    /// first
    #[arg(long, value_enum, default_value_t = ClientOrder::Since)]
    sort: ClientOrder,
    /// Only clients whose address or key begins with this text, or at addresses of this network,
    /// such as 198.51.100.0/24
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    filter: String,
    /// Maximum number of connections; 0: all [default: 50]
    #[arg(long, value_name = "N")]
    limit: Option<usize>,
    /// Print one JSON object per connection, one per line
    #[arg(long)]
    json: bool,
    /// Print the list again every two seconds, until stopped
    #[arg(long, conflicts_with = "json")]
    watch: bool,
}

/// The order of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ClientOrder {
    Rows,
    Events,
    Bytes,
    Since,
}

/// Default of `--limit` for a table.
const LIMIT: usize = 50;
/// Interval between two lists of `--watch`.
const WATCH_EVERY: Duration = Duration::from_secs(2);

/// The headings of the table, and the maximum width of each column.
const COLUMNS: [(&str, usize); 13] = [
    ("number", 12),
    ("address", 39),
    ("network", 8),
    ("key", 24),
    ("group", 12),
    ("program", 20),
    ("subs", 6),
    ("events", 17),
    ("questions", 17),
    ("rows", 15),
    ("in", 10),
    ("out", 10),
    ("for", 6),
];
/// The columns that begin at the left.
const LEFT: [usize; 5] = [1, 2, 3, 4, 5];

/// A list of connections.
struct ClientList {
    rows: Vec<Value>,
    /// Number of connections that match.
    matching: u64,
    /// Number of all open connections.
    open: u64,
    /// Number of earlier processes that still serve connections.
    earlier_processes: u64,
}

pub(crate) fn run(args: &ClientsArgs, location: &ArchiveLocation) -> anyhow::Result<ExitCode> {
    let limit = args.limit.unwrap_or(if args.json { 0 } else { LIMIT });
    let limit = if limit == 0 { usize::MAX } else { limit };
    if args.json {
        let mut server = connect(location)?;
        if args.sort == ClientOrder::Since {
            // The server lists the oldest connections first, as wanted here, so each row is printed
            // at once.
            print_objects(&mut server, &args.filter, limit)?;
        } else {
            for row in list(&mut server, args, limit)?.rows {
                print::row(&row.to_string())?;
            }
        }
        return Ok(ExitCode::SUCCESS);
    }
    loop {
        let list = list(&mut connect(location)?, args, limit)?;
        if args.watch && std::io::stdout().is_terminal() {
            // Moves to the upper left corner, and clears the screen.
            print::text(b"\x1b[H\x1b[2J")?;
        }
        print_table(&list)?;
        if !args.watch {
            return Ok(ExitCode::SUCCESS);
        }
        std::thread::sleep(WATCH_EVERY);
    }
}

/// Connects to the running server, which must exist.
pub(super) fn connect(location: &ArchiveLocation) -> anyhow::Result<ControlClient> {
    let Some(server) = location.control()? else {
        bail!(
            "no server answers on {}; name its data directory with --data",
            location.control_socket().display()
        )
    };
    Ok(server)
}

/// Requests all pages of the list, and passes each page's rows to `take` until it returns false.
/// Returns the last page.
fn read_pages(
    server: &mut ControlClient,
    filter: &str,
    mut take: impl FnMut(Vec<Value>) -> anyhow::Result<bool>,
) -> anyhow::Result<Value> {
    let mut after = 0;
    loop {
        let asked = server.clients(after, filter);
        let mut page = asked.context("the server did not list its clients")?;
        let Value::Array(rows) = page["connections"].take() else {
            bail!("the server's list of clients cannot be read")
        };
        let wants_more = take(rows)?;
        match page["next"].as_u64().filter(|_| wants_more) {
            Some(next) => after = next,
            None => return Ok(page),
        }
    }
}

fn print_objects(server: &mut ControlClient, filter: &str, limit: usize) -> anyhow::Result<()> {
    let mut left = limit;
    read_pages(server, filter, |rows| {
        for row in rows.iter().take(left) {
            print::row(&row.to_string())?;
        }
        left = left.saturating_sub(rows.len());
        Ok(left > 0)
    })?;
    Ok(())
}

/// Reads the list, and keeps at most `limit` rows in memory.
fn list(
    server: &mut ControlClient,
    args: &ClientsArgs,
    limit: usize,
) -> anyhow::Result<ClientList> {
    let (mut first, mut matching) = (BTreeMap::new(), 0);
    let last = read_pages(server, &args.filter, |rows| {
        matching += rows.len() as u64;
        for row in rows {
            let rank = (Reverse(args.sort.measure(&row)), number(&row, "number"));
            first.insert(rank, row);
            if first.len() > limit {
                first.pop_last();
            }
        }
        Ok(true)
    })?;
    let rows = first.into_values().collect();
    let (open, earlier_processes) = (number(&last, "open"), number(&last, "earlier_processes"));
    Ok(ClientList { rows, matching, open, earlier_processes })
}

impl ClientOrder {
    /// The measure by which rows are ordered; the greatest measure is first.
    fn measure(self, row: &Value) -> u64 {
        match self {
            Self::Rows => number(row, "rows"),
            Self::Events => number(row, "accepted") + number(row, "refused"),
            Self::Bytes => number(row, "received_bytes") + number(row, "sent_bytes"),
            // Rows of equal measure are in the order of their numbers, which ascend with time.
            Self::Since => 0,
        }
    }
}

fn number(row: &Value, name: &str) -> u64 {
    row[name].as_u64().unwrap_or_default()
}

fn print_table(list: &ClientList) -> anyhow::Result<()> {
    let now_s = Clock::System.now_s();
    let mut table = vec![COLUMNS.map(|(heading, _)| heading.to_owned())];
    table.extend(list.rows.iter().map(|row| cells(row, now_s)));
    let widths: [usize; COLUMNS.len()] = std::array::from_fn(|at| {
        let widest = table.iter().map(|row| row[at].chars().count()).max();
        widest.unwrap_or(0).min(COLUMNS[at].1)
    });
    for row in &table {
        let cells = row.iter().zip(widths).enumerate().map(|(at, (cell, width))| {
            let cell: String = cell.chars().take(width).collect();
            if LEFT.contains(&at) { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
        });
        print::row(cells.collect::<Vec<_>>().join("  ").trim_end())?;
    }
    let ClientList { rows, matching, open, earlier_processes } = list;
    let shown = rows.len() as u64;
    let mut parts = vec![print::count(*open, "open connection")];
    if matching < open {
        parts.push(format!("{} match", print::number(*matching)));
    }
    if shown < *matching {
        parts.push(format!("the first {} are shown (--limit)", print::number(shown)));
    }
    print::row(&parts.join(", "))?;
    if *earlier_processes > 0 {
        print::row("an earlier process still serves connections, which are not listed")?;
    }
    Ok(())
}

/// The cells of a row.
fn cells(row: &Value, now_s: u64) -> [String; COLUMNS.len()] {
    let count = |name| print::number(number(row, name));
    let text = |name: &str| printable(row[name].as_str().unwrap_or_default());
    let keys: Vec<&str> =
        row["keys"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let name = row["names"].get(0).and_then(Value::as_str);
    [
        number(row, "number").to_string(),
        text("address"),
        text("network"),
        name.map_or_else(|| keys.first().map_or_else(String::new, |key| shortened(key)), printable),
        text("group"),
        text("agent"),
        count("subscriptions"),
        format!("{} / {}", count("accepted"), count("refused")),
        format!("{} / {}", count("questions"), count("unanswered")),
        count("rows"),
        print::bytes(number(row, "received_bytes")),
        print::bytes(number(row, "sent_bytes")),
        age(now_s.saturating_sub(number(row, "since"))),
    ]
}

/// Returns a text without characters that could change the terminal or the direction of the text.
fn printable(text: &str) -> String {
    text.chars().map(|c| if c == ' ' || c.is_ascii_graphic() { c } else { '?' }).collect()
}

/// Returns the beginning and the end of a key.
fn shortened(key: &str) -> String {
    let key = printable(key);
    if key.len() <= 16 {
        return key;
    }
    format!("{}…{}", &key[..11], &key[key.len() - 4..])
}

/// Returns a duration in its largest unit: `59s`, `3m`, `5h`, `12d`.
fn age(seconds: u64) -> String {
    let units = [("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)];
    let unit = units.into_iter().find(|(_, unit_s)| seconds >= *unit_s);
    unit.map_or("0s".into(), |(unit, unit_s)| format!("{}{unit}", seconds / unit_s))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn cells_are_short_and_harmless() {
        let row = json!({
            "number": 7, "address": "192.0.2.1", "network": "toy", "agent": "a\u{1b}[2Jb\u{202e}ü",
            "keys": ["key10123456789abcdef"], "accepted": 1_234, "refused": 5, "since": 1_000,
        });
        let cells = cells(&row, 8_300);
        assert_eq!(cells[3], "key10123456…cdef");
        let named = json!({ "keys": ["key10123456789abcdef"], "names": ["bob@example.com"] });
        assert_eq!(super::cells(&named, 8_300)[3], "bob@example.com");
        assert_eq!(cells[5], "a?[2Jb??");
        assert_eq!((cells[7].as_str(), cells[12].as_str()), ("1,234 / 5", "2h"));
        assert_eq!((age(0), age(59), age(86_400 * 3)), ("0s".into(), "59s".into(), "3d".into()));
    }
}
