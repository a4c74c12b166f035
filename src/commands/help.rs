//! `hark completions` and `hark man`: shell completions and manual pages, generated from the same
//! definitions as `--help`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Args;
use clap_complete::Shell;

use crate::print;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  hark completions bash > /etc/bash_completion.d/hark
  hark completions zsh > /usr/share/zsh/site-functions/_hark
  hark completions fish > ~/.config/fish/completions/hark.fish")]
pub(crate) struct CompletionsArgs {
    /// The shell
    #[arg(value_name = "SHELL")]
    pub(crate) shell: Shell,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  hark man /usr/local/share/man/man1
  man hark-import")]
pub(crate) struct ManArgs {
    /// The directory for the pages, one page for each command; created if missing
    #[arg(value_name = "DIR")]
    pub(crate) dir: PathBuf,
}

pub(crate) fn completions(
    args: &CompletionsArgs,
    mut command: clap::Command,
) -> anyhow::Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, "hark", &mut script);
    print::text(&script)?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn man(args: &ManArgs, command: clap::Command) -> anyhow::Result<ExitCode> {
    let dir = args.dir.display();
    std::fs::create_dir_all(&args.dir).with_context(|| format!("{dir} could not be made"))?;
    clap_mangen::generate_to(command, &args.dir)
        .with_context(|| format!("the pages could not be written to {dir}"))?;
    Ok(ExitCode::SUCCESS)
}
