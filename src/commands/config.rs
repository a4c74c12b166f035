//! `hark config`: prints the default configuration or the one in force, or checks a file.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use crate::config::Config;
use crate::location::LocationArgs;
use crate::print;
use crate::stores::{StoreAddress, address_forms};

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  hark config > hark.toml             a file with all settings, their defaults and explanations
  hark config --check hark.toml
  HARK_SERVER_LISTEN=0.0.0.0:80 hark config --show

Every setting can be given in the environment as HARK_SECTION_KEY. The environment overrides the
file, and flags override both.")]
pub(crate) struct ConfigArgs {
    /// Check this file: report whether Hark would start with it as its configuration
    #[arg(long, value_name = "FILE")]
    pub(crate) check: Option<PathBuf>,
    /// Print the settings in force: flags, environment, file and defaults together
    #[arg(long, conflicts_with = "check")]
    pub(crate) show: bool,
}

const HEAD: &str = "\
# Hark's configuration. Every setting is here with its default; take the # away to change it.
# Each can be given in the environment, too, as HARK_SECTION_KEY, which wins over this file.
# Start with it: hark serve --config hark.toml
";

pub(crate) fn run(args: &ConfigArgs, location: &LocationArgs) -> anyhow::Result<ExitCode> {
    if let Some(path) = &args.check {
        Config::load(Some(path), &address_forms())?;
        print::line(&format!("{} is fine, together with the environment", path.display()))?;
    } else if args.show {
        let mut config = Config::load(location.config_file(), &address_forms())?;
        if let Some(data) = &location.data {
            config.data.clone_from(data);
        }
        if let Some(store) = &location.store {
            config.store = StoreAddress::new(store.clone());
        }
        print::line(config.to_toml(true).trim_end())?;
    } else {
        print::line(&format!("{HEAD}\n{}", Config::default().to_toml(false).trim_end()))?;
    }
    Ok(ExitCode::SUCCESS)
}
