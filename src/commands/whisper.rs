//! `hark whisper enode`: prints the enode address that clients of the Whisper mail server are
//! configured with.

use std::net::SocketAddr;
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use clap::{Args, Subcommand};
use hark_server::whisper::peers;
use serde_json::json;

use crate::location::ArchiveLocation;
use crate::print;

#[derive(Debug, Args)]
pub(crate) struct WhisperArgs {
    #[command(subcommand)]
    command: WhisperCommand,
}

#[derive(Debug, Subcommand)]
enum WhisperCommand {
    /// Print the mail server's enode address, for the configuration of clients
    ///
    /// The address contains the public key of the file whisper.key in the archive's directory. A
    /// missing file is created, so the address is known before the server runs for the first time.
    Enode(EnodeArgs),
}

#[derive(Debug, Args)]
struct EnodeArgs {
    /// Address and port at which clients reach the server [default: `listen` in [whisper]]
    #[arg(long, value_name = "ADDR:PORT")]
    at: Option<SocketAddr>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &WhisperArgs, location: &ArchiveLocation) -> anyhow::Result<ExitCode> {
    let WhisperCommand::Enode(EnodeArgs { at, json }) = &args.command;
    let listen = location.config.whisper.listen;
    let at = at.or(listen).context(
        "the mail server has no address for peers: set `listen` in [whisper], or pass an address \
         with --at",
    )?;
    if at.port() == 0 {
        bail!(
            "the port of {at} is chosen at each start; pass the address that clients reach with \
             --at"
        );
    }
    let key = peers::load_key(&location.data.join("whisper.key"))?;
    let enode = peers::enode(&key.public(), at);
    print::line(&if *json { json!({ "enode": enode }).to_string() } else { enode })?;
    Ok(ExitCode::SUCCESS)
}
