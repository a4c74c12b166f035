//! `hark config`: prints the default configuration or the configuration in force, or checks a file.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use serde_json::json;

use crate::config::{Config, Faults};
use crate::location::LocationArgs;
use crate::print;
use crate::program::WRONG_USE;
use crate::stores::{StoreAddress, address_forms, named_archive};

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  hark config > hark.toml             a file with all settings, their defaults and explanations
  hark config --check hark.toml
  hark config --check hark.toml --json
  HARK_SERVER_LISTEN=0.0.0.0:80 hark config --show

Every setting can be given in the environment as HARK_SECTION_KEY. The environment overrides the
file, and flags override both.

--check also names the settings that have no effect on the store of the file, the values of a preset,
allow lists without entries, and a plugin that is missing or not executable. --show marks each value
that a preset can set with its origin.

With --json, the object of --check has the `file`, its `faults`, and the other lines as `notes`. The
exit code is the same.")]
pub(crate) struct ConfigArgs {
    /// Check this file: report whether Hark would start with this configuration
    #[arg(long, value_name = "FILE")]
    pub(crate) check: Option<PathBuf>,
    /// Print the settings in force: flags, environment, file and defaults together
    #[arg(long, conflicts_with = "check")]
    pub(crate) show: bool,
    /// Print the result of --check as one JSON object
    #[arg(long, requires = "check", conflicts_with = "show")]
    pub(crate) json: bool,
}

const HEAD: &str = "\
# Hark's configuration. Every setting is here with its default; take the # away to change it.
# Each can be given in the environment, too, as HARK_SECTION_KEY, which wins over this file.
# Start with it: hark serve --config hark.toml
";

pub(crate) fn run(args: &ConfigArgs, location: &LocationArgs) -> anyhow::Result<ExitCode> {
    if let Some(path) = &args.check {
        let (file, checked) =
            (path.display().to_string(), Config::load(Some(path), &address_forms()));
        let notes = checked.as_ref().map(notes).unwrap_or_default();
        if args.json {
            let faults = checked.as_ref().err().map_or(&[][..], Faults::lines);
            let found = json!({ "file": file, "faults": faults, "notes": notes });
            print::line(&found.to_string())?;
            return Ok(if checked.is_ok() { ExitCode::SUCCESS } else { WRONG_USE.into() });
        }
        checked?;
        print::line(&format!("{file} is fine, together with the environment"))?;
        for note in notes {
            print::line(&format!("  {note}"))?;
        }
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
        print::text(file(&Config::default()).as_bytes())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns notes on a configuration, one per line. The notes are about settings without effect on
/// its store, lists that allow nothing, a plugin that cannot be run, and the values of a preset.
fn notes(config: &Config) -> Vec<String> {
    let archive = named_archive(config.store.secret(), &config.data);
    let is_in_files = archive.is_ok_and(|archive| archive.facts().is_in_directory);
    let mut notes = if is_in_files { Vec::new() } else { config.unused_without_files() };
    notes.extend(config.advice());
    notes.extend(config.preset_notes());
    notes
}

/// Returns the text of a file with all settings and their documentation. Settings with the default
/// are commented out.
pub(super) fn file(config: &Config) -> String {
    format!("{HEAD}\n{}\n", config.to_toml(false).trim_end())
}
