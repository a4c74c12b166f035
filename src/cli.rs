//! The list of commands that clap parses. The flags and examples of each command are in `commands`,
//! beside the command's code; the flags that name an archive are in `location`.

use clap::{Arg, CommandFactory as _, Parser, Subcommand};

use crate::commands::admin::AdminArgs;
use crate::commands::adopt::AdoptArgs;
use crate::commands::backup::BackupArgs;
use crate::commands::bench::BenchProgramArgs;
use crate::commands::clients::ClientsArgs;
use crate::commands::cluster::ClusterArgs;
use crate::commands::config::ConfigArgs;
use crate::commands::copy::CopyArgs;
use crate::commands::delete::DeleteArgs;
use crate::commands::doctor::DoctorArgs;
use crate::commands::explain::ExplainArgs;
use crate::commands::export::ExportArgs;
use crate::commands::healthz::HealthzArgs;
use crate::commands::help::{CompletionsArgs, ManArgs};
use crate::commands::import::ImportArgs;
use crate::commands::init::InitArgs;
use crate::commands::kick::KickArgs;
use crate::commands::migrate::MigrateArgs;
use crate::commands::moderation::change::{AllowArgs, BanArgs, LiftArgs};
use crate::commands::moderation::invite::InviteArgs;
use crate::commands::moderation::list::ListArgs;
use crate::commands::moderation::log::AuditArgs;
use crate::commands::query::QueryArgs;
use crate::commands::relays::router::RouterArgs;
use crate::commands::relays::stream::StreamArgs;
use crate::commands::relays::sync::SyncArgs;
use crate::commands::reload::ReloadArgs;
use crate::commands::reports::ReportsArgs;
use crate::commands::restore::RestoreArgs;
use crate::commands::salvage::SalvageArgs;
use crate::commands::serve::ServeArgs;
use crate::commands::stats::StatsArgs;
use crate::commands::top::TopArgs;
use crate::commands::waku::WakuArgs;
#[cfg(feature = "devp2p")]
use crate::commands::whisper::WhisperArgs;
use crate::location::{LocationArgs, networks};
use crate::program::{VERSION, reflowed};

const AFTER: &str = "\
On a fresh machine:
  hark init                           asks for five values, and writes a first configuration
  hark serve                          a relay on ws://127.0.0.1:7777, its archive in ./data
  hark import events.jsonl            old events into the same archive, also while it serves
  hark query '{\"kinds\":[1],\"limit\":5}'

Exit codes: 0 done, 1 failed or faults found, 2 wrong flags, filter or configuration, 3 done in part (`hark sync`), 130 interrupted.

Documentation: docs/README.md, or /usr/share/doc/hark/docs of a package";

/// Keeps the messages of open messaging networks and returns any part of the history, fast.
///
/// One binary manages one archive. Commands work beside a running server: they read the same files,
/// and the server does their writes. Stop the server only for `restore`, `salvage` and, if the
/// archive is in files, `rebuild`.
#[derive(Debug, Parser)]
#[command(name = "hark", version = VERSION, after_help = AFTER, max_term_width = 100)]
#[command(arg_required_else_help = true)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) location: LocationArgs,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The examples of `hark compact`.
const COMPACT: &str = "\
Examples:
  hark compact
  hark --data /var/lib/hark compact --network waku

If a server runs, it does the work, and keeps serving meanwhile. Afterwards, deleted events are gone
from the files. The command works on one network, by default Nostr.";

/// The examples of `hark check`.
const CHECK: &str = "\
Examples:
  hark check
  hark --data /var/lib/hark check --network waku

Nothing is changed, and a server may run. The command reads one network, by default Nostr.

Exit codes: 0 no faults, 1 faults were found or the check failed, 2 wrong flags.";

/// The examples of `hark rebuild`.
const REBUILD: &str = "\
Examples:
  hark rebuild
  hark --data /var/lib/hark rebuild --network waku
  hark rebuild --store postgres://hark@localhost/hark

In an archive in files, the command makes the segments again from the logs, and also MANIFEST if it
is missing. It does not repair a damaged log: use `hark salvage`.

In an archive in PostgreSQL, the command repairs the faults that `hark check` finds, from the
events, while the servers run. Damaged events are listed, and not changed. The command refuses Citus
clusters.

The command works on one network, by default Nostr.

Exit codes: 0 done, 1 faults remain or the rebuild failed, 2 wrong flags.";

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run the server: accept, keep and return events
    Serve(ServeArgs),
    /// Import events from JSONL files, plain, .gz or .zst
    Import(ImportArgs),
    /// Export events as JSONL
    Export(ExportArgs),
    /// Copy the new data of the archive to a backup, even while the server runs
    Backup(BackupArgs),
    /// Create an archive from a backup
    Restore(RestoreArgs),
    /// Copy all events of one archive to another, while both are served
    Copy(CopyArgs),
    /// Copy the events of another relay's database into the archive, while that relay runs
    Adopt(AdoptArgs),
    /// Exchange missing events with another relay, once
    Sync(SyncArgs),
    /// Keep the archive and other relays in step, event by event, until stopped
    Stream(StreamArgs),
    /// Run the streams of a file between the archive and other relays, until stopped
    Router(RouterArgs),
    /// Print the events that match a filter, newest first
    Query(QueryArgs),
    /// Print how many events match a filter
    Count(QueryArgs),
    /// Delete the events that match a filter; without --yes, only show what would be deleted
    Delete(DeleteArgs),
    /// Show the plan for a filter and its expected cost
    Explain(ExplainArgs),
    /// Show the archive's size and state
    Stats(StatsArgs),
    /// Show the kinds, authors and days with the most events and bytes
    Top(TopArgs),
    /// Merge segments and free the space of deleted events, even while the server runs
    #[command(after_help = COMPACT)]
    Compact(StatsArgs),
    /// Read the whole archive and compare every checksum and index with the records
    #[command(after_help = CHECK)]
    Check(StatsArgs),
    /// Rebuild all indices; the server must be stopped, except on PostgreSQL
    #[command(after_help = REBUILD)]
    Rebuild(StatsArgs),
    /// Copy every whole event of a damaged archive to a new archive, and list the losses
    Salvage(SalvageArgs),
    /// Update the tables of an archive in PostgreSQL, or show whether they are up to date
    Migrate(MigrateArgs),
    /// Manage the nodes of a Citus cluster: show, add, drain, rebalance, replace
    Cluster(ClusterArgs),
    /// Show the Waku node of the running server: its record, its peers, and its reachability
    Waku(WakuArgs),
    /// Commands for the Whisper mail server
    #[cfg(feature = "devp2p")]
    Whisper(WhisperArgs),
    /// Have the running server read its configuration again, and print what has changed
    Reload(ReloadArgs),
    /// List the open connections of the running server, with the address and the work of each client
    Clients(ClientsArgs),
    /// Close connections of the running server, by address, network, key or number
    Kick(KickArgs),
    /// Ban keys, events, kinds, words, addresses and networks, at once on all servers of the archive
    Ban(BanArgs),
    /// Lift bans
    Unban(LiftArgs),
    /// Allow keys, events, kinds, words, addresses and networks in addition to the allow lists
    Allow(AllowArgs),
    /// Lift allows
    Unallow(LiftArgs),
    /// Make, list or revoke codes with which keys join the members of the relay (NIP-43)
    Invite(InviteArgs),
    /// List the bans and allows in the archive
    List(ListArgs),
    /// Print the audit log: every ban, allow and management call, newest first
    Log(AuditArgs),
    /// List the reported events and keys that nobody has decided about (NIP-56)
    Reports(ReportsArgs),
    /// Log in to the page for managers of the running relay
    Admin(AdminArgs),
    /// Check the health of a running server; without --at, of the server that the configuration
    /// names
    Healthz(HealthzArgs),
    /// Check the server, the archive and the machine, and give advice on each problem
    Doctor(DoctorArgs),
    /// Make a first configuration: ask for five values on a terminal, or take them from flags
    Init(InitArgs),
    /// Print the default configuration with comments, or check a configuration file
    Config(ConfigArgs),
    /// Measure a relay, this one or any other, by its URL
    Bench(BenchProgramArgs),
    /// Print the completions of a shell
    Completions(CompletionsArgs),
    /// Write the manual pages to a directory
    Man(ManArgs),
}

/// Names of the commands that take no --network. [`Command::of_no_network`] gives the reasons.
const OF_NO_NETWORK: [&str; 28] = [
    "serve",
    "sync",
    "stream",
    "router",
    "adopt",
    "backup",
    "restore",
    "waku",
    "whisper",
    "cluster",
    "reload",
    "clients",
    "kick",
    "ban",
    "unban",
    "allow",
    "unallow",
    "invite",
    "list",
    "log",
    "reports",
    "admin",
    "healthz",
    "init",
    "config",
    "bench",
    "completions",
    "man",
];

/// Returns the definition of the command line, with help as wide as the terminal. If --network has
/// no meaning for a command, the command's help does not show the flag.
pub(crate) fn command() -> clap::Command {
    let command = Cli::command().mut_subcommands(|sub| {
        if !OF_NO_NETWORK.contains(&sub.get_name()) {
            return sub;
        }
        // The hidden flag is still parsed, so that the error can explain why the flag has no
        // meaning.
        let hidden = Arg::new("network").long("network").value_name("NAME");
        sub.arg(hidden.value_parser(networks()).global(true).hide(true))
    });
    reflowed(command)
}

/// Returns the definition of the command line for shell completion. Completion scripts also offer
/// hidden flags, so only the commands that take --network define the flag here.
pub(crate) fn completed() -> clap::Command {
    let command = Cli::command().mut_arg("network", |network| network.global(false));
    let network = command.get_arguments().find(|arg| arg.get_id() == "network").cloned();
    command.mut_subcommands(|sub| {
        let takes_one = !OF_NO_NETWORK.contains(&sub.get_name());
        sub.args(network.clone().filter(|_| takes_one).map(|network| network.global(true)))
    })
}

impl Command {
    /// Returns why this command takes no --network; `None` if the command takes the flag.
    pub(crate) fn of_no_network(&self) -> Option<&'static str> {
        match self {
            Self::Serve(_) => {
                Some("`hark serve` serves every network that the configuration names")
            }
            Self::Sync(_) | Self::Stream(_) | Self::Router(_) => {
                Some("other relays have only events of Nostr")
            }
            Self::Adopt(_) => Some("the source of `hark adopt` determines the network"),
            Self::Waku(_) => Some("`hark waku` is about one network"),
            #[cfg(feature = "devp2p")]
            Self::Whisper(_) => Some("`hark whisper` is about one network"),
            Self::Cluster(_) => Some("`hark cluster` is about the nodes, which have all networks"),
            Self::Reload(_) => Some("a server reads the settings of all its networks at once"),
            Self::Clients(_) | Self::Kick(_) => Some(
                "the connections of all networks are in one list; `--filter` also takes a name",
            ),
            Self::Ban(_)
            | Self::Unban(_)
            | Self::Allow(_)
            | Self::Unallow(_)
            | Self::Invite(_)
            | Self::List(_)
            | Self::Log(_) => Some("the bans and allows of an archive hold for all its networks"),
            Self::Reports(_) => Some("only Nostr has reports"),
            Self::Admin(_) => Some("the page for managers is a page of the relay"),
            Self::Healthz(_) => Some("`hark healthz` covers all networks of a server"),
            Self::Backup(_) | Self::Restore(_) => Some("a backup has all networks"),
            Self::Init(_) => Some("`hark init` names the networks to serve with --networks"),
            Self::Config(_) => Some("`hark config` is about the settings of all networks"),
            Self::Completions(_) | Self::Man(_) => Some("help is the same for all networks"),
            Self::Bench(_) => Some("each benchmark measures one network"),
            _ => None,
        }
    }
}
