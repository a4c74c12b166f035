//! The file that names the relays of a comparison.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use serde::Deserialize;

/// The whole file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PlanFile {
    relay: Vec<PlannedRelay>,
}

/// An entry of the file: a relay. Texts may contain the placeholders of
/// [`Placeholders`].
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PlannedRelay {
    pub(super) name: String,
    /// The program and its arguments.
    pub(super) command: Vec<String>,
    /// The relay's ws:// address.
    pub(super) address: String,
    /// The sign that the relay is ready: an http:// address that answers, or a text in the relay's
    /// output.
    pub(super) ready: Option<String>,
    /// The directory of the relay's data, which is emptied before each load.
    pub(super) data: Option<PathBuf>,
    /// A command that prints the version in its first line.
    #[serde(default)]
    pub(super) version: Vec<String>,
    /// The durability of an acknowledged event, in the words of the relay's author.
    #[serde(default)]
    pub(super) durable: String,
    /// Facts about the settings for the reader of the result.
    #[serde(default)]
    pub(super) note: String,
    #[serde(default)]
    pub(super) env: BTreeMap<String, String>,
    /// Files that are written to the relay's directory before each start.
    #[serde(default)]
    pub(super) files: BTreeMap<String, String>,
    /// Maximum time to become ready, in seconds.
    #[serde(default = "default_wait_s")]
    pub(super) ready_s: u64,
    /// Maximum time to end after SIGTERM, in seconds.
    #[serde(default = "default_wait_s")]
    pub(super) stop_s: u64,
}

fn default_wait_s() -> u64 {
    60
}

/// The values that replace `{data}`, `{dir}` and `{port}`.
#[derive(Clone, Debug)]
pub(super) struct Placeholders {
    pub(super) data: PathBuf,
    pub(super) dir: PathBuf,
    pub(super) port: u16,
}

impl Placeholders {
    pub(super) fn fill(&self, text: &str) -> String {
        text.replace("{data}", &self.data.to_string_lossy())
            .replace("{dir}", &self.dir.to_string_lossy())
            .replace("{port}", &self.port.to_string())
    }
}

/// Reads the relays of a file. Returns those with one of the `wanted` texts in their names, or all
/// relays if `wanted` is empty.
pub(super) fn read(path: &Path, wanted: &[String]) -> anyhow::Result<Vec<PlannedRelay>> {
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("{} could not be read", path.display()))?;
    let plan: PlanFile = toml::from_str(&text)
        .with_context(|| format!("{} is no list of relays", path.display()))?;
    let folder = std::path::absolute(path)?.parent().map(Path::to_owned).unwrap_or_default();
    let mut relays = plan.relay;
    for (at, relay) in relays.iter().enumerate() {
        if relay.command.is_empty() || relay.name.trim().is_empty() {
            bail!("{}: relay {} needs a name and a command", path.display(), at + 1);
        }
        if relays[..at].iter().any(|other| other.name == relay.name) {
            bail!("{}: two relays have the name {}", path.display(), relay.name);
        }
        let outside = |file: &String| {
            let file = Path::new(file);
            file.components().any(|part| !matches!(part, std::path::Component::Normal(_)))
        };
        if let Some(file) = relay.files.keys().find(|file| outside(file)) {
            bail!("{}: {file} is no path inside the relay's directory", path.display());
        }
    }
    let is_wanted = |name: &str| wanted.iter().any(|part| name.contains(part.as_str()));
    relays.retain(|relay| wanted.is_empty() || is_wanted(&relay.name));
    if relays.is_empty() {
        bail!("{} has no relay that is to be compared", path.display());
    }
    for relay in &mut relays {
        for command in [&mut relay.command, &mut relay.version] {
            if let Some(program) = command.first_mut()
                && program.contains('/')
            {
                // Paths are relative to the file, since a relay runs in a directory of its own.
                *program = folder.join(&*program).to_string_lossy().into_owned();
            }
        }
        relay.data = relay.data.take().map(|data| folder.join(data));
    }
    Ok(relays)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str, wanted: &[&str]) -> anyhow::Result<Vec<PlannedRelay>> {
        let name = format!("hark-plan-{}-{:?}", std::process::id(), std::thread::current().id());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, text).unwrap();
        let wanted: Vec<String> = wanted.iter().map(|name| (*name).to_owned()).collect();
        let plan = read(&path, &wanted);
        std::fs::remove_file(path).unwrap();
        plan
    }

    const RELAY: &str = "[[relay]]\nname='a'\ncommand=['./a', '{port}']\naddress='ws://x:{port}'\n";

    #[test]
    fn programs_are_found_from_the_file_and_placeholders_are_filled() {
        let relays = parse(&format!("{RELAY}data='d'\n"), &[]).unwrap();
        let folder = std::path::absolute(std::env::temp_dir()).unwrap();
        assert_eq!(relays[0].command[0], folder.join("./a").to_string_lossy());
        assert_eq!(relays[0].data, Some(folder.join("d")));
        let places = Placeholders { data: "/d".into(), dir: "/r".into(), port: 7 };
        assert_eq!(places.fill("{data}/x {dir} {port} {other}"), "/d/x /r 7 {other}");
    }

    #[test]
    fn a_wrong_file_is_refused_with_the_reason() {
        for (text, wanted, reason) in [
            ("relays=1", &[][..], "no list of relays"),
            (&format!("{RELAY}{RELAY}"), &[], "two relays have the name a"),
            (&format!("{RELAY}[relay.files]\n'../x'='y'"), &[], "inside the relay's directory"),
            (&format!("{RELAY}durability='x'"), &[], "no list of relays"),
            ("[[relay]]\nname=''\ncommand=['a']\naddress='x'", &[], "needs a name"),
            (RELAY, &["other"], "no relay that is to be compared"),
        ] {
            let error = parse(text, wanted).unwrap_err().to_string();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }
}
