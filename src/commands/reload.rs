//! `hark reload`: makes the running server read its configuration again, and prints the result.

use std::process::ExitCode;

use anyhow::bail;
use clap::Args;
use hark_server::control::ControlError;
use serde_json::json;

use crate::location::ArchiveLocation;
use crate::print;
use crate::watch::OLD_CERTIFICATE;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  hark --data /var/lib/hark reload
  hark --data /var/lib/hark reload --json

The server reads its configuration file, the files that the configuration names, and its
environment. It also does so by itself when one of these files changes, and on SIGHUP; this command
waits for the result. If the configuration has faults, nothing changes: the faults are printed, and
the exit code is 1. The exit code is also 1 if only the certificate cannot be used.

With --json, the object shows whether the configuration is `in_force`, and has its `changes` and its \
`faults`. The exit code is the same.")]
pub(crate) struct ReloadArgs {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &ReloadArgs, location: &ArchiveLocation) -> anyhow::Result<ExitCode> {
    let Some(mut server) = location.control()? else {
        bail!(
            "no server answers on {}; name its data directory with --data",
            location.control_socket().display()
        )
    };
    let read = match server.reload() {
        Ok(changes) => Ok(changes),
        Err(ControlError::Refused(why)) => Err(why),
        Err(error) => {
            return Err(anyhow::Error::new(error).context("the server did not report the result"));
        }
    };
    let is_fault = |line: &str| read.is_err() || line.trim().starts_with(OLD_CERTIFICATE);
    let text = read.as_ref().unwrap_or_else(|why| why);
    let exit = if text.lines().any(is_fault) { ExitCode::FAILURE } else { ExitCode::SUCCESS };
    if args.json {
        let (faults, changes): (Vec<_>, Vec<_>) =
            text.lines().map(str::trim).partition(|line| is_fault(line));
        let json = json!({ "in_force": read.is_ok(), "changes": changes, "faults": faults });
        print::line(&json.to_string())?;
        return Ok(exit);
    }
    let changes = match read {
        Ok(changes) => changes,
        Err(why) => {
            bail!("the new configuration is refused, and the old one stays in force:\n  {why}")
        }
    };
    print::line("the configuration was read again, and is in force")?;
    for change in changes.lines() {
        print::line(&format!("  {change}"))?;
    }
    if changes.is_empty() {
        print::line(
            "  nothing has changed since the server last read it; a server reads changed files by itself",
        )?;
    }
    Ok(exit)
}
