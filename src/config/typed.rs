//! Settings as typed in a file or in the environment. This module finds the origin of each value,
//! and checks that its setting exists. `settings` interprets the values later.

use std::path::Path;

use toml::de::{DeTable, DeValue};

use super::setting::{Setting, SettingsSection};
use super::settings::SECTIONS;
use super::value::{TypedValue, ValueOrigin, convert, did_you_mean};

/// A value, its setting and its origin.
#[derive(Debug)]
pub(crate) struct TypedSetting {
    /// The name of the setting's section.
    pub(crate) section: &'static str,
    pub(crate) setting: &'static Setting,
    pub(crate) value: TypedValue,
    pub(crate) origin: ValueOrigin,
}

/// The typed settings, and a line for each fault. Parsing continues after a fault, so that all
/// faults are found.
pub(crate) type TypedSettings = (Vec<TypedSetting>, Vec<String>);

/// Variables for which an empty list disables a protection. A variable set to nothing, probably by
/// mistake, must not disable the protection.
const OPEN_IF_EMPTY: [&str; 2] = ["HARK_PRIVACY_KINDS", "HARK_WAKU_PROTECTED_SHARDS"];

impl TypedSetting {
    /// Whether this is a variable in [`OPEN_IF_EMPTY`] that was set to nothing.
    pub(crate) fn is_left_blank(&self) -> bool {
        let is_named = matches!(
            &self.origin,
            ValueOrigin::Environment(name) if OPEN_IF_EMPTY.contains(&name.as_str())
        );
        is_named && matches!(&self.value, TypedValue::Bare(text) if text.trim().is_empty())
    }
}

/// Reads the text of a configuration file.
pub(crate) fn from_toml(path: &Path, text: &str) -> TypedSettings {
    let line_of = |at: usize| 1 + text[..at.min(text.len())].matches('\n').count();
    let at = |at: usize| ValueOrigin::File { path: path.to_path_buf(), line: line_of(at) };
    let document = match DeTable::parse(text) {
        Ok(document) => document,
        Err(error) => {
            let origin = at(error.span().map_or(0, |span| span.start));
            return (Vec::new(), vec![format!("{origin}: {}", error.message())]);
        }
    };
    let mut typed = Vec::new();
    let mut faults = Vec::new();
    for (section, body) in document.get_ref() {
        let (name, origin) = (section.get_ref().as_ref(), at(section.span().start));
        if !SECTIONS.iter().any(|section| section.name == name) {
            let fault = unknown_section(name, matches!(body.get_ref(), DeValue::Table(_)));
            faults.push(format!("{origin}: {fault}"));
            continue;
        }
        let DeValue::Table(body) = body.get_ref() else {
            faults.push(format!(
                "{origin}: `{name}` is a section: write [{name}], then its settings"
            ));
            continue;
        };
        for (key, value) in body {
            let (key, origin) = (key.get_ref().as_ref(), at(key.span().start));
            match find(name, key) {
                Ok((section, setting)) => {
                    let value = convert(value.get_ref(), &line_of);
                    typed.push(TypedSetting { section, setting, value, origin });
                }
                Err(fault) => faults.push(format!("{origin}: {fault}")),
            }
        }
    }
    (typed, faults)
}

/// Hark's environment variables that are not settings.
const NOT_SETTINGS: [&str; 2] = ["HARK_DATA", "HARK_CONFIG"];

/// Reads variables named `HARK_SECTION_KEY`. A variable that names a section, but none of the
/// section's settings, is a fault. Variables that name no section are ignored.
pub(crate) fn from_environment(variables: impl Iterator<Item = (String, String)>) -> TypedSettings {
    let mut typed = Vec::new();
    let mut faults = Vec::new();
    for (name, text) in variables {
        let Some(rest) = name.strip_prefix("HARK_") else { continue };
        if NOT_SETTINGS.contains(&name.as_str()) {
            continue;
        }
        let rest = rest.to_ascii_lowercase();
        let Some((section, key)) = rest.split_once('_') else { continue };
        if !SECTIONS.iter().any(|known| known.name == section) {
            continue;
        }
        match find(section, key) {
            Ok((section, setting)) => typed.push(TypedSetting {
                section,
                setting,
                value: TypedValue::Bare(text),
                origin: ValueOrigin::Environment(name),
            }),
            Err(fault) => faults.push(format!("environment variable {name}: {fault}")),
        }
    }
    (typed, faults)
}

/// Describes the fault of an unknown section, or of a key before the first section.
fn unknown_section(name: &str, is_section: bool) -> String {
    match sections_with(name) {
        Some((named, have)) if is_section => {
            format!("unknown section [{name}]; {named} {have} a setting `{name}`")
        }
        Some((named, have)) => format!("`{name}` belongs in a section: {named} {have} one"),
        None => {
            let known = SECTIONS.iter().map(|section| section.name);
            format!("unknown section [{name}]{}", did_you_mean(name, known))
        }
    }
}

/// Returns the sections that have this setting, as text, and the verb "has" or "have". Returns
/// `None` if no section has the setting.
fn sections_with(key: &str) -> Option<(String, &'static str)> {
    let has = |section: &&SettingsSection| section.settings.iter().any(|known| known.key == key);
    let sections = SECTIONS.iter().filter(has).map(|section| format!("[{}]", section.name));
    let mut sections: Vec<String> = sections.collect();
    let last = sections.pop()?;
    if sections.is_empty() {
        return Some((last, "has"));
    }
    Some((format!("{} and {last}", sections.join(", ")), "have"))
}

/// Returns the section and the setting with these names.
fn find(section: &str, key: &str) -> Result<(&'static str, &'static Setting), String> {
    let sections = SECTIONS.iter().filter(|known| known.name == section);
    let settings =
        sections.flat_map(|section| section.settings.iter().map(|one| (section.name, one)));
    settings.clone().find(|(_, setting)| setting.key == key).ok_or_else(|| {
        let elsewhere = sections_with(key).map(|(named, have)| format!("; {named} {have} one"));
        let hint =
            elsewhere.unwrap_or_else(|| did_you_mean(key, settings.map(|(_, known)| known.key)));
        format!("unknown setting `{key}` in [{section}]{hint}")
    })
}
