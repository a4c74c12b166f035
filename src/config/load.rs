//! Loads the configuration, and shows the settings.

use std::fmt::Write as _;
use std::path::Path;

use hark_codec::hex;
use hark_networks::Network;
use hark_server::nostr::NameRules;

use super::files::{FileState, FileTexts};
use super::value::TypedValue;
use super::values::Config;
use super::waku::PRESET;
use super::{checks, keys, settings, sizes, typed};
use crate::stores::AddressForm;

/// The setting in a network's section that selects whether the network is served.
const SERVE: &str = "serve";

/// The faults of a configuration. Each fault is one line of text, with the file and line number, or
/// the environment variable, of its origin.
#[derive(Debug)]
pub(crate) struct Faults {
    lines: Vec<String>,
    /// The files that were read or named, with their states just before the read.
    pub(crate) files: Vec<FileState>,
}

impl Faults {
    /// Returns the faults, one line for each fault.
    pub(crate) fn lines(&self) -> &[String] {
        &self.lines
    }

    /// Returns the faults as one text, without a heading.
    pub(crate) fn list(&self) -> String {
        self.lines.join("\n  ")
    }
}

impl std::fmt::Display for Faults {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "the configuration cannot be used, and nothing was done:\n  {}\n\
             `hark config` prints every setting with its default",
            self.list()
        )
    }
}

impl std::error::Error for Faults {}

impl Config {
    /// Loads the configuration from the defaults, an optional file, and the environment. `stores`
    /// are the address forms of all kinds of stores.
    pub(crate) fn load(file: Option<&Path>, stores: &[AddressForm]) -> Result<Self, Faults> {
        let Some(path) = file else { return Self::read(None, Vec::new(), stores) };
        // The state is taken before the file is read, so that a change during the read is noticed.
        let files = vec![FileState::new(path.into())];
        match std::fs::read_to_string(path) {
            Ok(text) => Self::read(Some((path, text)), files, stores),
            Err(error) => {
                let lines = vec![format!(
                    "{} could not be read: {error}; `--config FILE` names another, and \
                     `--config ''` none",
                    path.display()
                )];
                Err(Faults { lines, files })
            }
        }
    }

    /// Checks the text of a file that is not written yet, together with the environment.
    pub(crate) fn check(path: &Path, text: String, stores: &[AddressForm]) -> Result<(), Faults> {
        Self::read(Some((path, text)), Vec::new(), stores).map(drop)
    }

    /// Reads the environment and, if given, the text of a file. `files` are the files that were
    /// read.
    fn read(
        file: Option<(&Path, String)>,
        mut files: Vec<FileState>,
        stores: &[AddressForm],
    ) -> Result<Self, Faults> {
        let mut faults = Vec::new();
        let (mut typed, mut texts) = (Vec::new(), FileTexts::new());
        let path = file.as_ref().map(|(path, _)| *path);
        if let Some((path, text)) = file {
            (typed, faults) = typed::from_toml(path, &text);
            texts.insert(path.into(), text);
        }
        let variables = std::env::vars_os()
            .filter_map(|(name, text)| Some((name.into_string().ok()?, text.into_string().ok()?)));
        let (variables, new) = typed::from_environment(variables);
        typed.extend(variables);
        faults.extend(new);
        // A preset changes defaults, so presets are applied before the other settings.
        typed.sort_by_key(|typed| (typed.section, typed.setting.key) != PRESET);
        let mut config = Self::default();
        for typed in &typed {
            let place = (typed.section, typed.setting.key);
            config.origins.insert(place, typed.origin.clone());
            let value = sizes::in_bytes(typed.setting.key, &typed.value);
            if typed.is_left_blank() {
                let key = typed.setting.key;
                faults.push(format!("{}: `{key}` is empty; write [] for none", typed.origin));
            } else if let Err(fault) = (typed.setting.set)(&mut config, &value) {
                let key = typed.setting.key;
                let or =
                    if sizes::is_size(key) { "; a size may be \"50GB\" or \"64MiB\"" } else { "" };
                faults.push(format!("{}: `{key}` {fault}{or}", typed.origin));
            } else if place == PRESET {
                config.waku.apply_preset();
            }
        }
        let info = &mut config.info;
        for key in [&mut info.pubkey, &mut info.self_key].into_iter().flatten() {
            if let Ok(read) = keys::public_key(key) {
                *key = hex::text_32(&read);
            }
        }
        let folder = path.and_then(Path::parent).unwrap_or(Path::new(""));
        let mut named = config.lists.files(folder);
        named.extend(config.rate_groups.files(folder));
        named.extend(config.trust_settings.files(folder));
        files.extend(named.into_iter().map(FileState::new));
        config.files.clone_from(&files);
        // An invalid value was replaced by the default, so its setting causes no second fault.
        faults
            .extend(checks::faults(&config, stores).into_iter().map(|fault| placed(fault, &typed)));
        config.file = path.map(Path::to_path_buf);
        match config.lists.read(folder, &mut texts) {
            Ok(read) => {
                (config.addresses, config.policy, config.spared, config.managers.admins) = read;
                let NameRules { domains_allowed, domains_denied, .. } = config.policy.names;
                let managers = config.managers.clone();
                config.policy.names =
                    NameRules { domains_allowed, domains_denied, managers, ..config.names.clone() };
            }
            Err(new) => faults.extend(new.into_iter().map(|fault| placed(fault, &typed))),
        }
        match config.rate_groups.read(folder, &mut texts) {
            Ok(groups) => config.groups = groups,
            Err(new) => faults.extend(new.into_iter().map(|fault| placed(fault, &typed))),
        }
        match config.trust_settings.read(folder, &mut texts) {
            Ok(options) => config.trust = options,
            Err(new) => faults.extend(new.into_iter().map(|fault| placed(fault, &typed))),
        }
        config.texts = texts;
        if faults.is_empty() { Ok(config) } else { Err(Faults { lines: faults, files }) }
    }

    /// Returns the settings that differ from `before`: each as `section.key = value` on one line,
    /// and whether a running server applies the change.
    pub(crate) fn changes(&self, before: &Self) -> Vec<(String, bool)> {
        let mut changes = Vec::new();
        for section in settings::SECTIONS {
            for setting in section.settings {
                if !(setting.is_same)(self, before) {
                    let is_live = setting.is_live;
                    let value = (setting.show)(self).replace('\n', "\\n");
                    changes.push((format!("{}.{} = {value}", section.name, setting.key), is_live));
                }
            }
        }
        changes
    }

    /// Returns the faults of the settings.
    pub(crate) fn faults(&self, stores: &[AddressForm]) -> Vec<String> {
        checks::faults(self, stores)
    }

    /// Selects a network to be served. A network without the setting `serve` is always served.
    pub(crate) fn serve(&mut self, network: &dyn Network) -> Result<(), String> {
        let sections = settings::SECTIONS.iter().filter(|section| section.name == network.name());
        let mut settings = sections.flat_map(|section| section.settings);
        match settings.find(|setting| setting.key == SERVE) {
            Some(setting) => (setting.set)(self, &TypedValue::Switch(true)),
            None => Ok(()),
        }
    }

    /// Returns all settings as TOML. With `active`, the text has the settings alone, without
    /// comments. Without `active`, the text is a file to start from: each setting has its
    /// documentation, and a setting with its default value is commented out.
    pub(crate) fn to_toml(&self, active: bool) -> String {
        let (mut out, default) = (String::new(), Self::default());
        for section in settings::SECTIONS {
            if !active {
                let _ = writeln!(out, "# {}", section.doc);
            }
            let _ = writeln!(out, "[{}]", section.name);
            for setting in section.settings {
                let value = (setting.show)(self);
                if active {
                    let _ = match self.preset_origin(section.name, setting.key) {
                        Some(origin) => writeln!(out, "{} = {value}  # {origin}", setting.key),
                        None => writeln!(out, "{} = {value}", setting.key),
                    };
                    continue;
                }
                for line in setting.doc.lines() {
                    let _ = writeln!(out, "# {line}");
                }
                let mark = if (setting.is_same)(self, &default) { "#" } else { "" };
                let _ = writeln!(out, "{mark}{} = {value}", setting.key);
            }
            out.push('\n');
        }
        out.pop();
        out
    }
}

/// Adds the setting's origin (file and line, or variable) before a fault that begins with a section
/// and a setting, as in "[section] `key`". Other faults are returned unchanged.
fn placed(fault: String, typed: &[typed::TypedSetting]) -> String {
    let Some((section, rest)) = fault.strip_prefix('[').and_then(|rest| rest.split_once("] "))
    else {
        return fault;
    };
    let mut keys = rest.split('`').skip(1).step_by(2);
    // The environment overrides the file.
    let place = keys.find_map(|key| {
        typed.iter().rev().find(|typed| typed.section == section && typed.setting.key == key)
    });
    match place {
        Some(typed) => format!("{}: {fault}", typed.origin),
        None => fault,
    }
}
