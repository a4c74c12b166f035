//! `hark admin link`: prints a link that logs in once to the relay's page for managers.

use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Args, Subcommand};
use hark_server::control::ControlError;
use serde_json::json;

use super::clients::connect;
use super::moderation::user;
use crate::location::ArchiveLocation;
use crate::print;

#[derive(Debug, Args)]
pub(crate) struct AdminArgs {
    #[command(subcommand)]
    command: AdminCommand,
}

#[derive(Debug, Subcommand)]
enum AdminCommand {
    /// Print a link that logs in once to the relay's page for managers
    Link(AdminLinkArgs),
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  hark admin link
  hark --data /var/lib/hark admin link

Open the link in a browser within 10 minutes, and press the button. The link works once. The browser
stays logged in for 12 hours, or until the server restarts. It may change everything on the page:
bans and allows, members, roles, reports and connections. The audit log (`hark log`) names the user
who has made the link.

The link has the address of [info] url. Without this setting, the link has the address on which the
server listens, such as http://127.0.0.1:7777. [manage] page = false disables the page.

Exit codes: 0 the link is printed, 1 no server answers or the page is off, 2 wrong flags.")]
struct AdminLinkArgs {
    /// Print one JSON object, with the link as `url`
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &AdminArgs, location: &ArchiveLocation) -> anyhow::Result<ExitCode> {
    let AdminCommand::Link(AdminLinkArgs { json }) = &args.command;
    let made = connect(location)?.admin_link(&user());
    let answer = made.map_err(|error| match error {
        ControlError::Refused(why) => anyhow::anyhow!(why),
        error => anyhow::Error::new(error).context("the server did not make a link"),
    })?;
    let (url, path) = (answer["url"].as_str(), answer["path"].as_str());
    if *json {
        print::line(&json!({ "url": url, "path": path }).to_string())?;
        return Ok(ExitCode::SUCCESS);
    }
    print::line(url.or(path).context("the server's answer cannot be read")?)?;
    if url.is_none() {
        print::note!(
            "hark: set [info] url; this is only the path of the link, at the address of the relay"
        );
    }
    Ok(ExitCode::SUCCESS)
}
