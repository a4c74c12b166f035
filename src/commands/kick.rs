//! `hark kick`: closes connections of the running server.

use std::process::ExitCode;

use anyhow::Context as _;
use clap::Args;
use hark_server::control::ControlError;
use serde_json::json;

use super::clients::connect;
use crate::location::ArchiveLocation;
use crate::print;
use crate::wrong_use::WrongUse;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  hark kick 198.51.100.7
  hark kick 198.51.100.0/24 --reason 'too many events; write to admin@example.com'
  hark kick 2001:db8:1:2::/64
  hark kick npub10elfcs4fr0l0r8af98jlmgdh9c8tcxjvz9qkw038js35mp4dma8qzvjptg
  hark kick 4711

Closes all open connections of an address, of a network of addresses, or of a key that the client
has proved (AUTH; for a node, the id that `hark clients` shows), or the one connection that has this
number in `hark clients`. A client of the relay gets the reason in a NOTICE and in the close frame
(code 1008).

The client may connect again at once. `hark ban` closes the connections of an address or a key, and
also refuses new connections.

Exit codes: 0 connections are closed, 1 no connection matches or the command failed, 2 wrong flags.")]
pub(crate) struct KickArgs {
    /// An address, a network, a key, or the number of a connection
    #[arg(value_name = "ADDRESS|NETWORK|KEY|NUMBER")]
    whom: String,
    /// The reason for the clients
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// Print one JSON object, with the number of closed connections
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &KickArgs, location: &ArchiveLocation) -> anyhow::Result<ExitCode> {
    let answer = match connect(location)?.kick(&args.whom, args.reason.as_deref()) {
        Ok(answer) => answer,
        Err(ControlError::Refused(why)) => return Err(WrongUse(why).into()),
        Err(error) => {
            return Err(anyhow::Error::new(error).context("the server did not report the result"));
        }
    };
    let closed = answer["closed"].as_u64().context("the server's answer cannot be read")?;
    if args.json {
        print::line(&json!({ "closed": closed }).to_string())?;
    } else {
        print::line(&format!("{} closed", print::count(closed, "connection")))?;
    }
    if answer["earlier_processes"].as_u64().is_some_and(|count| count > 0) {
        print::note!(
            "hark: an earlier process still serves connections, which this command does not reach"
        );
    }
    Ok(if closed > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
