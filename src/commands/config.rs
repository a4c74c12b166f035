//! `hark config`: the default configuration, the one in force, or what is wrong with a file.

use std::process::ExitCode;

use crate::cli::{ConfigArgs, PlaceArgs};
use crate::config::Config;
use crate::print;

const HEAD: &str = "\
# Hark's configuration. Every setting is here with its default; take the # away to change it.
# Each can be given in the environment, too, as HARK_SECTION_KEY, which wins over this file.
# Start with it: hark serve --config hark.toml
";

pub(crate) fn run(args: &ConfigArgs, place: &PlaceArgs) -> anyhow::Result<ExitCode> {
    if let Some(path) = &args.check {
        Config::load(Some(path))?;
        print::line(&format!("{} is fine, together with the environment", path.display()))?;
    } else if args.show {
        let config = Config::load(place.config.as_deref())?;
        print::line(config.to_toml(true).trim_end())?;
    } else {
        print::line(&format!("{HEAD}\n{}", Config::default().to_toml(false).trim_end()))?;
    }
    Ok(ExitCode::SUCCESS)
}
