//! `hark doctor`: checks for problems that often prevent a server from working, and gives advice.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use hark_archive::store::StoreStats;
use hark_server::ListenAddress;
use hark_server::growth::GrowthLog;
use hark_server::listener::files_for_connections;
use hark_server::tls::{self, PresentedCertificate, TlsOptions};
use hark_store_embedded::backup::BackupCatalog;
use hark_store_embedded::disk::RealDisk;
use serde_json::json;

use super::healthz;
use crate::location::{ArchiveLocation, SERVICES};
use crate::print;
use crate::when;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  hark doctor
  hark doctor --json

Prints one row for each check: `ok`, `advice` (it works, but could be better) or `wrong`, with the
remedy. Nothing is changed. The exit code is 1 if something is wrong.")]
pub(crate) struct DoctorArgs {
    /// The server's address [default: server.metrics_listen, or else server.listen]
    #[arg(long, value_name = "ADDR:PORT")]
    at: Option<ListenAddress>,
    /// Print one JSON object a row
    #[arg(long)]
    json: bool,
}

/// Where deploy/hark-backup.service keeps the backup of the service's archive.
const SERVICE_BACKUP: &str = "/var/lib/hark-backup";
/// Age above which the last backup counts as a fault, since a backup is made every night.
const BACKUP_OLD: Duration = Duration::from_hours(3 * 24);
/// Number of free bytes below which the disk needs attention at once.
const FREE_MIN: u64 = 512 << 20;
/// An archive that fills its disk in fewer days gets an advice.
const DAYS_MIN: f64 = 30.0;
/// A certificate that expires within this time should have been renewed, and is reported.
const RENEWAL_LATE: Duration = Duration::from_hours(14 * 24);
/// How far in the future the newest record may be before the clock is doubted.
const AHEAD_MAX: Duration = Duration::from_hours(1);
/// How long the server may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Paths at which systemd's unit for an archive of [`SERVICES`] may be installed.
const UNITS: [&str; 3] = [
    "/etc/systemd/system/hark.service",
    "/usr/lib/systemd/system/hark.service",
    "/lib/systemd/system/hark.service",
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Fine,
    Advice,
    Wrong,
}

impl Verdict {
    fn word(self) -> &'static str {
        match self {
            Self::Fine => "ok",
            Self::Advice => "advice",
            Self::Wrong => "wrong",
        }
    }
}

/// The result of one check.
#[derive(Debug)]
struct Finding {
    subject: &'static str,
    verdict: Verdict,
    text: String,
}

#[derive(Default)]
struct Findings(Vec<Finding>);

impl Findings {
    fn add(&mut self, subject: &'static str, verdict: Verdict, text: impl Into<String>) {
        self.0.push(Finding { subject, verdict, text: text.into() });
    }
}

pub(crate) fn run(args: &DoctorArgs, location: &ArchiveLocation) -> anyhow::Result<ExitCode> {
    let mut found = Findings::default();
    configuration(location, &mut found);
    let stats = archive(location, &mut found);
    let at = args.at.clone().map_or_else(|| healthz::served_at(&location.config), Ok)?;
    let presented = server(&at, location, &mut found);
    if let Some(options) = location.config.tls_options(&location.data) {
        certificate(&options, presented, location, &mut found);
    }
    if let Some(stats) = &stats {
        disk(stats, location, &mut found);
        clock(stats, location, &mut found);
    }
    files(location, &mut found);
    address(location, &mut found);
    backup(location, &mut found);
    for Finding { subject, verdict, text } in &found.0 {
        let verdict = verdict.word();
        print::line(&if args.json {
            json!({ "subject": subject, "verdict": verdict, "text": text }).to_string()
        } else {
            format!("{verdict:<8}{subject:<15}{text}")
        })?;
    }
    let is_wrong = found.0.iter().any(|finding| finding.verdict == Verdict::Wrong);
    Ok(if is_wrong { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn configuration(location: &ArchiveLocation, found: &mut Findings) {
    let file = location.config.file.as_ref();
    let text = file.map_or("no file, so the defaults and the environment".into(), |file| {
        file.display().to_string()
    });
    found.add("configuration", Verdict::Fine, text);
    for fault in location.config.advice() {
        found.add("configuration", Verdict::Advice, fault);
    }
}

/// Opens the archive, as `hark stats` does.
fn archive(location: &ArchiveLocation, found: &mut Findings) -> Option<StoreStats> {
    let name = location.store.shown(&location.place());
    let is_new = location.facts().is_in_directory && !location.data.exists();
    if is_new {
        let text = format!("none yet in {name}; the first start of a server makes one");
        found.add("archive", Verdict::Advice, text);
        return None;
    }
    match location.read().map(|store| store.stats()) {
        Ok(stats) => {
            let (records, count) = (location.network.records(), print::number(stats.records));
            let text = format!("{count} {records} in {name}");
            found.add("archive", Verdict::Fine, text);
            if stats.damaged > 0 {
                let text = format!(
                    "{} damaged {records} were found; `hark check` lists them, and a backup or \
                     another relay may have them",
                    print::number(stats.damaged)
                );
                found.add("archive", Verdict::Wrong, text);
            }
            Some(stats)
        }
        Err(error) => {
            found.add("archive", Verdict::Wrong, format!("{error:#}"));
            None
        }
    }
}

/// Checks the health of the server. Returns the server's certificate; `None` without TLS or without
/// an answer.
fn server(
    at: &ListenAddress,
    location: &ArchiveLocation,
    found: &mut Findings,
) -> Option<PresentedCertificate> {
    let has_tls = healthz::speaks_tls(&location.config, at);
    let answer = healthz::ask(at, has_tls, PATIENCE).ok();
    match answer.as_ref().and_then(|answer| healthz::parse(&answer.text)) {
        None => {
            let running = location.control().is_ok_and(|server| server.is_some());
            let (verdict, text) = if running {
                let text = format!("a server runs, but nothing answers at {at}");
                (Verdict::Wrong, text + "; compare server.listen with the flags of the server")
            } else if has_unit(&location.data, &UNITS) {
                let text = format!(
                    "none runs at {at}, but the service hark is installed: `systemctl start hark`, and \
                     `journalctl -u hark` if it ended by itself"
                );
                (Verdict::Wrong, text)
            } else {
                (Verdict::Advice, format!("none runs at {at}"))
            };
            found.add("server", verdict, text);
        }
        Some((status, body)) => {
            let mut lines = body.lines();
            let first = lines.next().unwrap_or_default();
            if status == 200 {
                found.add("server", Verdict::Fine, format!("answers at {at}"));
            } else {
                found.add("server", Verdict::Wrong, first);
            }
            let verdict = if status == 200 { Verdict::Advice } else { Verdict::Wrong };
            for line in lines {
                found.add("server", verdict, line);
            }
        }
    }
    answer.and_then(|answer| answer.certificate)
}

/// Checks the certificate that the server presents, or else the certificate on the disk.
fn certificate(
    options: &TlsOptions,
    presented: Option<PresentedCertificate>,
    location: &ArchiveLocation,
    found: &mut Findings,
) {
    let presented = match presented.map_or_else(|| tls::read_certificate(options), Ok) {
        Ok(presented) => presented,
        Err(fault) => return found.add("certificate", Verdict::Wrong, fault.to_string()),
    };
    let (now_s, expires_s) = (when::now_s(), presented.expires_s());
    let expires = print::moment(expires_s);
    if expires_s <= now_s {
        let text = format!(
            "expired at {expires}, so clients refuse it; the log of the server says why it was not \
             renewed"
        );
        return found.add("certificate", Verdict::Wrong, text);
    }
    let config = &location.config;
    let host = config.url_host().filter(|_| config.tls.is_for_relay());
    if let Some(host) = host.filter(|host| !presented.is_for(host)) {
        let text = format!(
            "is not for {host}, the host of [info] url, so clients refuse it; get a certificate for \
             this name"
        );
        return found.add("certificate", Verdict::Wrong, text);
    }
    if expires_s - now_s < RENEWAL_LATE.as_secs() {
        let text = format!("expires at {expires}; check that it is renewed before");
        return found.add("certificate", Verdict::Advice, text);
    }
    found.add("certificate", Verdict::Fine, format!("expires at {expires}"));
}

/// Whether one of these units of systemd is installed, and serves the archive in `data`.
fn has_unit(data: &Path, units: &[&str]) -> bool {
    let is_service = SERVICES.iter().any(|service| Path::new(service) == data);
    is_service && units.iter().any(|unit| Path::new(unit).exists())
}

fn disk(stats: &StoreStats, location: &ArchiveLocation, found: &mut Findings) {
    let Some(free) = stats.free_bytes else { return };
    let kept_free = location.shelf_config().retention.free_bytes_min;
    let text =
        format!("{} free beside an archive of {}", print::bytes(free), print::bytes(stats.bytes));
    let remedy = "a larger disk, or a rule in [retention], such as bytes_max or free_bytes_min";
    let log = GrowthLog::read(&location.data).unwrap_or_default();
    let days = log.days_until_full(free, when::now_s()).filter(|_| kept_free.is_none());
    if free < FREE_MIN.max(kept_free.unwrap_or(0)) {
        found.add("disk", Verdict::Wrong, format!("{text}; it needs {remedy}"));
    } else if free < stats.bytes / 5 && kept_free.is_none() {
        found.add("disk", Verdict::Advice, format!("{text}; soon it needs {remedy}"));
    } else if let Some(days) = days.filter(|days| *days < DAYS_MIN) {
        let days = print::count(days as u64, "day");
        let text = format!("{text}, which fills the disk in {days}; then it needs {remedy}");
        found.add("disk", Verdict::Advice, text);
    } else {
        found.add("disk", Verdict::Fine, text);
    }
}

fn clock(stats: &StoreStats, location: &ArchiveLocation, found: &mut Findings) {
    let now_s = when::now_s();
    let newest_s = stats.newest.map(|newest| newest / location.network.nature().units_per_s);
    match newest_s.filter(|newest_s| *newest_s > now_s + AHEAD_MAX.as_secs()) {
        Some(newest_s) => {
            let text = format!(
                "it is {} here, but the newest record is dated {}; compare the clock with \
                 another machine",
                print::moment(now_s),
                print::moment(newest_s)
            );
            found.add("clock", Verdict::Advice, text);
        }
        None => found.add("clock", Verdict::Fine, print::moment(now_s)),
    }
}

fn files(location: &ArchiveLocation, found: &mut Findings) {
    let (files, connections) =
        (files_for_connections(), location.config.limits.connections_max as u64);
    if files < connections {
        let text = format!(
            "a server that is started here may have {} connections, fewer than \
             limits.connections_max, {}; raise the limit with `ulimit -n` or LimitNOFILE= of the unit",
            print::number(files),
            print::number(connections)
        );
        found.add("open files", Verdict::Advice, text);
    } else {
        let text = format!("enough for {} connections", print::number(connections));
        found.add("open files", Verdict::Fine, text);
    }
}

/// Checks the setting for the address at which clients reach the relay.
fn address(location: &ArchiveLocation, found: &mut Findings) {
    let config = &location.config;
    let Some(url) = &config.info.url else {
        // The advice is left out if the server's own answer already has this advice.
        if found.0.iter().any(|finding| finding.text.contains("[info] url")) {
            return;
        }
        let text = "[info] url is not set; set it to the address at which clients reach the relay, \
                    such as wss://relay.example";
        return found.add("address", Verdict::Advice, text);
    };
    let (has_tls, is_secure) = (config.tls.is_for_relay(), url.starts_with("wss://"));
    if has_tls && !is_secure {
        let text = format!(
            "{url} is without TLS, but the relay speaks TLS alone; [info] url needs wss://, unless \
             clients come by a proxy at a Unix socket"
        );
        return found.add("address", Verdict::Advice, text);
    }
    let is_behind_proxy = is_secure && !has_tls;
    if is_behind_proxy && config.proxies.trusted.is_empty() {
        let text = format!(
            "{url} needs a proxy for TLS, but server.trusted_proxies is empty, so all clients \
             count as one address; name the proxy's address, such as \"127.0.0.1\", or set [tls]"
        );
        return found.add("address", Verdict::Wrong, text);
    }
    found.add("address", Verdict::Fine, format!("clients use {url}"));
}

fn backup(location: &ArchiveLocation, found: &mut Findings) {
    let dir = Path::new(SERVICE_BACKUP);
    let is_service = SERVICES.iter().any(|service| location.data.starts_with(service));
    // A database may be backed up elsewhere. The directory may then have an old backup of files
    // that were later moved into the database. Such a backup does not count.
    let is_files = location.facts().is_in_directory;
    let is_ours = |catalog: &BackupCatalog| {
        is_files || catalog.shelves.iter().any(|shelf| shelf.puts.is_some())
    };
    let time_s = match BackupCatalog::read(&RealDisk, dir) {
        Ok(Some(catalog)) if catalog.time_s > 0 && is_ours(&catalog) => catalog.time_s,
        Ok(_) if is_service && is_files => {
            let text = "there is none in /var/lib/hark-backup; hark-backup.timer makes one every \
                        night: systemctl enable --now hark-backup.timer";
            return found.add("backup", Verdict::Advice, text);
        }
        Ok(_) => return,
        Err(error) => return found.add("backup", Verdict::Advice, error.to_string()),
    };
    let age_s = when::now_s().saturating_sub(time_s);
    let text = format!("{}, in {SERVICE_BACKUP}", print::ago(age_s));
    let is_old = age_s > BACKUP_OLD.as_secs();
    found.add("backup", if is_old { Verdict::Wrong } else { Verdict::Fine }, text);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stopped_server_is_a_fault_where_its_unit_is_installed() {
        let unit = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/hark.service");
        for (data, units, is_wrong) in [
            ("/var/lib/hark", &["/no/such.service", unit][..], true),
            ("/var/lib/hark/", &[unit][..], true),
            ("/var/lib/hark", &["/no/such.service"][..], false),
            ("data", &[unit][..], false),
        ] {
            assert_eq!(has_unit(Path::new(data), units), is_wrong, "{data}: {units:?}");
        }
    }
}
