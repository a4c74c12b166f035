//! `hark reload`: makes the running server read its configuration again, and prints the result.

use std::process::ExitCode;

use anyhow::bail;
use clap::Args;
use hark_server::control::ControlError;

use crate::location::ArchiveLocation;
use crate::print;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  hark --data /var/lib/hark reload

The server reads its configuration file, the files that the configuration names, and its
environment. It also does so by itself when one of these files changes, and on SIGHUP; this command
waits for the result. A configuration with faults changes nothing: the faults are printed, and the
exit code is 1.")]
pub(crate) struct ReloadArgs {}

pub(crate) fn run(_: &ReloadArgs, location: &ArchiveLocation) -> anyhow::Result<ExitCode> {
    let Some(mut server) = location.control()? else {
        bail!(
            "no server answers on {}; name its data directory with --data",
            location.control_socket().display()
        )
    };
    let changes = match server.reload() {
        Ok(changes) => changes,
        Err(ControlError::Refused(why)) => {
            bail!("the new configuration is refused, and the old one stays in force:\n  {why}")
        }
        Err(error) => {
            return Err(anyhow::Error::new(error).context("the server did not report the result"));
        }
    };
    print::line("the configuration was read again, and is in force")?;
    for change in changes.lines() {
        print::line(&format!("  {change}"))?;
    }
    if changes.is_empty() {
        print::line(
            "  nothing has changed since the server last read it, which it does by itself",
        )?;
    }
    Ok(ExitCode::SUCCESS)
}
