//! The command line as typed: flags, their help and the examples it teaches with. What they mean is
//! decided in `commands`.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::builder::{PossibleValue, PossibleValuesParser};
use clap::{Args, Parser, Subcommand};
use hark_networks::{NETWORKS, Network};

use crate::config::LogFormat;

const AFTER: &str = "\
On a fresh machine:
  hark serve                          a Nostr relay on ws://127.0.0.1:7777, its archive in ./data
  hark import events.jsonl            old events into the same archive, also while it serves
  hark query '{\"kinds\":[1],\"limit\":5}'

Exit codes: 0 done, 1 failed or faults found, 2 wrong flags, filter or configuration, 130 interrupted.
Documentation: docs/operating.md";

/// Keeps the messages of open messaging networks and gives any slice of the history back, fast.
///
/// One binary, one archive. Every command but `rebuild` works beside a running server: reads look
/// at the same files, writes are handed to the server.
#[derive(Debug, Parser)]
#[command(name = "hark", version, after_help = AFTER, max_term_width = 100)]
#[command(disable_help_subcommand = true, arg_required_else_help = true)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) place: PlaceArgs,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Which archive, and with which settings.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct PlaceArgs {
    /// The archive's directory [default: archive.data of the configuration, which is ./data]
    #[arg(long, value_name = "DIR", env = "HARK_DATA", global = true)]
    pub(crate) data: Option<PathBuf>,
    /// Where events are kept: `embedded` (files in DIR) or postgres://user@host/database
    /// [default: archive.store of the configuration, which is embedded]
    #[arg(long, value_name = "URL", env = "HARK_STORE", global = true, hide_env_values = true)]
    pub(crate) store: Option<String>,
    /// Whose shelf a command is about; the first is meant where none is named
    #[arg(long, value_name = "NAME", value_parser = networks(), global = true)]
    pub(crate) network: Option<String>,
    /// A configuration file; none is needed (see `hark config`)
    #[arg(long, value_name = "FILE", env = "HARK_CONFIG", global = true)]
    pub(crate) config: Option<PathBuf>,
}

fn networks() -> PossibleValuesParser {
    let named = |network: &&dyn Network| PossibleValue::new(network.name()).help(network.records());
    NETWORKS.iter().map(named).collect::<Vec<_>>().into()
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Listen, keep and answer: the relay
    Serve(ServeArgs),
    /// Take events in from JSONL files, plain, .gz or .zst
    Import(ImportArgs),
    /// Write events out as JSONL
    Export(ExportArgs),
    /// Bring all events of one archive into another, while both are served
    Copy(CopyArgs),
    /// Bring the events of another relay's database into the archive, while that relay runs
    Adopt(AdoptArgs),
    /// Print the events that match a filter, newest first
    Query(QueryArgs),
    /// Print how many events match a filter
    Count(QueryArgs),
    /// Delete the events that match a filter; without --yes only says what it would do
    Delete(DeleteArgs),
    /// Show how a filter would be answered, and what that is expected to cost
    Explain(ExplainArgs),
    /// Show the archive's size and state
    Stats(StatsArgs),
    /// Merge segments and give back the room of deleted events, also while the server runs
    Compact(StatsArgs),
    /// Read the whole archive and compare every checksum, list and rank with the records
    Check(StatsArgs),
    /// Make all indices anew from the log; the server must be stopped
    Rebuild(StatsArgs),
    /// Bring the tables of an archive in PostgreSQL up to date, or show whether they are
    Migrate(MigrateArgs),
    /// Print the default configuration with comments, or check a given one
    Config(ConfigArgs),
    /// Measure a relay, this one or any other, by its URL
    Bench(Box<hark_bench::BenchArgs>),
}

impl Command {
    /// Why it makes no sense to name a network for it, if that is so.
    pub(crate) fn of_no_network(&self) -> Option<&'static str> {
        match self {
            Self::Serve(_) => {
                Some("`hark serve` serves every network that the configuration names")
            }
            Self::Adopt(_) => Some("`hark adopt` knows by the database what it brings in"),
            Self::Config(_) => Some("`hark config` is about the settings of all networks"),
            Self::Bench(_) => Some("each of `hark bench`'s measurements is of one network"),
            _ => None,
        }
    }
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  hark serve
  hark serve --data /var/lib/hark --listen 0.0.0.0:7777
  HARK_INFO_NAME='My relay' hark serve --config hark.toml
  hark serve --log-format json 2>> hark.log
  hark serve --store postgres://hark@localhost/hark

The first line on stdout, `listening on ws://...`, comes once connections are accepted. Logs go to
stderr. SIGTERM or Ctrl-C lets the answers under way finish and closes the archive; a second one
ends at once, which costs nothing that was acknowledged.

With --takeover the new server gets the sockets and the archive of the one that runs, which then
serves the connections it has to their end (at most limits.takeover_drain_s) and exits. If the new
one does not come up, the old one goes on as if nothing had been. For the embedded archive.")]
pub(crate) struct ServeArgs {
    /// Address and port to listen on [default: 127.0.0.1:7777]
    #[arg(long, value_name = "ADDR:PORT")]
    pub(crate) listen: Option<SocketAddr>,
    /// Take the place of the server that runs on this archive, without dropping a connection
    #[arg(long)]
    pub(crate) takeover: bool,
    /// What is logged: error, warn, info, debug, trace, or a filter [default: log.level, info]
    #[arg(long, value_name = "LEVEL")]
    pub(crate) log_level: Option<String>,
    /// How it is written [default: log.format, text]
    #[arg(long, value_name = "FORMAT")]
    pub(crate) log_format: Option<LogFormat>,
    /// Turn rate limits off, for tests and benchmarks only
    #[arg(long)]
    pub(crate) unlimited: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  hark import events.jsonl more.jsonl.zst
  strfry export | hark import --trusted
  hark import --json dump.jsonl.gz > report.json

One event a line. Every id and signature is checked, on all cores. Compression is told by content,
not by name. An import that was stopped goes on when run again: what is kept already is skipped
before its signature is checked. Refused events are counted by reason and do not fail the import.")]
pub(crate) struct ImportArgs {
    /// Files to read, in this order; `-` is stdin
    #[arg(value_name = "FILE", default_value = "-")]
    pub(crate) files: Vec<PathBuf>,
    /// Skip the check of ids and signatures, for exports of an archive you trust
    #[arg(long)]
    pub(crate) trusted: bool,
    /// Print the report as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  hark export > events.jsonl
  hark export --output backup.jsonl.zst
  hark export '{\"kinds\":[30023]}' --since 2024-01-01 --until 2024-12-31T23:59:59
  hark export --since 7d

Oldest first, so that an import applies versions and deletions in the order they were made. An
export imported into a fresh archive and exported again gives the same bytes. Expired events are
left out. A file appears under its name only when it is whole; .gz and .zst are compressed.")]
pub(crate) struct ExportArgs {
    /// Filters of the network, as JSON; a record is written if it matches any [default: everything]
    #[arg(value_name = "FILTER")]
    pub(crate) filters: Vec<String>,
    /// Not before: seconds since 1970, a date (UTC), or an age like 12h or 7d
    #[arg(long, value_name = "TIME", value_parser = crate::when::parse)]
    pub(crate) since: Option<u64>,
    /// Not after, given like --since
    #[arg(long, value_name = "TIME", value_parser = crate::when::parse)]
    pub(crate) until: Option<u64>,
    /// Newest first, as a relay would send them
    #[arg(long)]
    pub(crate) newest_first: bool,
    /// Write to this file instead of stdout
    #[arg(long, short, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  hark copy --from /var/lib/hark --to /mnt/new
  hark copy --from data --to postgres://hark@127.0.0.1/hark
  hark copy --from postgres://hark@127.0.0.1/hark --to data --delete

Both are walked through side by side, oldest first, and what is missing is brought over, whole and as it
is: exports of both are equal byte for byte. Servers may run on either, and the source may be written
meanwhile: another walk brings what came. A copy that was stopped goes on when run again, as what is there
is only compared. To have none missing at the moment of the change, turn [mirror] on (docs/operating.md).")]
pub(crate) struct CopyArgs {
    /// The archive to read: a directory or a postgres:// URL
    #[arg(long, value_name = "STORE")]
    pub(crate) from: String,
    /// The archive to write, made if it is not there
    #[arg(long, value_name = "STORE")]
    pub(crate) to: String,
    /// Delete what only the target has, so that it becomes the same
    #[arg(long)]
    pub(crate) delete: bool,
    /// Print the result as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(arg_required_else_help = true)]
pub(crate) struct AdoptArgs {
    #[command(subcommand)]
    pub(crate) from: AdoptFrom,
}

#[derive(Debug, Subcommand)]
pub(crate) enum AdoptFrom {
    /// Of nostream: the table `events` of its PostgreSQL
    Nostream(AdoptNostreamArgs),
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  hark adopt nostream postgres://nostr_ts_relay@127.0.0.1/nostr_ts_relay
  hark adopt nostream postgres://... --rate 2000 --follow     beside a relay in use, until Ctrl-C
  hark adopt nostream postgres://... --verify                 once more, and say whether all is here

Only reads there, in short statements: the relay may go on. Rows come in the order of their time, a
batch at a time; where it is, is remembered with each batch, so a run that was stopped or killed goes on
when run again, and nothing comes twice. At the end all ids are compared, which brings in what came late.
--follow brings what is published meanwhile, until Ctrl-C, which compares once more and ends. What has an
old date takes longer: it is found by reading the table over and over, for a tenth of the time.

Every id is checked to be the hash of its event, so no value can have come over wrong. Signatures are not
checked, since nostream has done so; --verify-signatures does it again, at some 30 us an event on a core.
Deleted, expired and ephemeral events stay behind; what else is refused is counted by reason.")]
pub(crate) struct AdoptNostreamArgs {
    /// nostream's database: postgres://user:password@host:port/database
    #[arg(value_name = "URL")]
    pub(crate) url: String,
    /// Events a second, at most [default: as fast as they come]
    #[arg(long, value_name = "N")]
    pub(crate) rate: Option<u64>,
    /// Events that are brought over at once
    #[arg(long, value_name = "N", default_value_t = 2_000, value_parser = clap::value_parser!(u32).range(1..=50_000))]
    pub(crate) batch: u32,
    /// Then bring what is published there, until Ctrl-C
    #[arg(long)]
    pub(crate) follow: bool,
    /// Compare so many events with the archive's, byte for byte [default with the flag: 1000]
    #[arg(long, value_name = "N", num_args = 0..=1, default_missing_value = "1000")]
    pub(crate) verify: Option<u64>,
    /// Check all signatures, too
    #[arg(long)]
    pub(crate) verify_signatures: bool,
    /// Print the result as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  hark query '{\"kinds\":[1],\"limit\":20}'
  hark query '{\"authors\":[\"<hex key>\"]}' '{\"#p\":[\"<hex key>\"]}'
  hark count '{\"kinds\":[0]}' --json

Several filters are one question: an event counts once if it matches any of them.")]
pub(crate) struct QueryArgs {
    /// Filters of the network, as JSON
    #[arg(value_name = "FILTER", required = true)]
    pub(crate) filters: Vec<String>,
    /// Print JSON (events always are)
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  hark delete '{\"kinds\":[4],\"until\":1700000000}'          says how many, shows a few
  hark delete '{\"kinds\":[4],\"until\":1700000000}' --yes    deletes them

Deleted events may come back from other relays; the archive keeps no memory of them.")]
pub(crate) struct DeleteArgs {
    /// Filters of the network, as JSON
    #[arg(value_name = "FILTER", required = true)]
    pub(crate) filters: Vec<String>,
    /// Really delete
    #[arg(long)]
    pub(crate) yes: bool,
    /// Print the result as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  hark explain '{\"kinds\":[1],\"#t\":[\"nostr\"],\"limit\":100}'
  hark explain --run '{\"authors\":[\"<hex key>\"],\"kinds\":[0]}'")]
pub(crate) struct ExplainArgs {
    /// Filters of the network, as JSON; each is explained by itself
    #[arg(value_name = "FILTER", required = true)]
    pub(crate) filters: Vec<String>,
    /// Ask it too, and compare the rows visited with the estimate
    #[arg(long)]
    pub(crate) run: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  hark migrate status --store postgres://hark@localhost/hark
  hark migrate up --store postgres://hark@localhost/hark

`hark serve` does the same when it starts, unless postgres.migrate is false.")]
pub(crate) struct MigrateArgs {
    /// What to do
    #[arg(value_enum)]
    pub(crate) action: MigrateAction,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum MigrateAction {
    /// Apply what is missing
    Up,
    /// Only look
    Status,
}

#[derive(Debug, Args)]
pub(crate) struct StatsArgs {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  hark config > hark.toml             a file to start from: every setting, its default, what it does
  hark config --check hark.toml
  HARK_SERVER_LISTEN=0.0.0.0:80 hark config --show

Every setting can be given in the environment as HARK_SECTION_KEY, which wins over the file.
Flags win over both.")]
pub(crate) struct ConfigArgs {
    /// Read this file and say whether Hark would start with it
    #[arg(long, value_name = "FILE")]
    pub(crate) check: Option<PathBuf>,
    /// Print the settings in force: file, environment and defaults together
    #[arg(long, conflicts_with = "check")]
    pub(crate) show: bool,
}
