//! Settings as typed in a file or in the environment. This module finds the origin of each value,
//! and checks that its setting exists. `settings` interprets the values later.

use std::borrow::Cow;
use std::fmt;
use std::path::{Path, PathBuf};

use toml::de::{DeTable, DeValue};

use super::settings::{SECTIONS, Setting, SettingsSection};

/// Where a value was typed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ValueOrigin {
    File { path: PathBuf, line: usize },
    Environment(String),
}

impl fmt::Display for ValueOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { path, line } => write!(f, "{}:{line}", path.display()),
            Self::Environment(name) => write!(f, "environment variable {name}"),
        }
    }
}

/// A value as typed.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum TypedValue {
    Text(String),
    /// Text from the environment, which has no other type.
    Bare(String),
    Whole(i64),
    Fraction(f64),
    Switch(bool),
    List(Vec<TypedValue>),
    /// A table in an array of tables, with the line of each key.
    Table(Vec<(String, usize, TypedValue)>),
    Other(&'static str),
}

impl TypedValue {
    /// Returns the entries of a list; `None` for other values. In the environment a list is written
    /// as in a file, `[4, 1059]`, or as entries separated by commas.
    pub(crate) fn entries(&self) -> Option<Cow<'_, [Self]>> {
        let text = match self {
            Self::List(entries) => return Some(entries.into()),
            Self::Bare(text) => text.trim(),
            _ => return None,
        };
        if text.starts_with('[') {
            return list_in_toml(text).map(Cow::Owned);
        }
        if text.starts_with(['"', '\'']) {
            return list_in_toml(&format!("[{text}]")).map(Cow::Owned);
        }
        let entries = text.split(',').map(str::trim).filter(|entry| !entry.is_empty());
        Some(entries.map(|entry| Self::Bare(entry.into())).collect())
    }
}

fn list_in_toml(text: &str) -> Option<Vec<TypedValue>> {
    let text = format!("list = {text}");
    let document = DeTable::parse(&text).ok()?;
    let mut values = document.get_ref().values();
    let (Some(list), None) = (values.next(), values.next()) else { return None };
    match convert(list.get_ref(), &|at| 1 + text[..at].matches('\n').count()) {
        TypedValue::List(entries) => Some(entries),
        _ => None,
    }
}

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

/// Reads variables named `HARK_SECTION_KEY`. A variable that names a section but no setting of
/// it is a fault. Variables that name no section are ignored.
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

/// Describes the fault of an unknown name before all sections, or of an unknown section.
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

fn convert(value: &DeValue<'_>, line_of: &dyn Fn(usize) -> usize) -> TypedValue {
    match value {
        DeValue::String(text) => TypedValue::Text(text.to_string()),
        DeValue::Integer(number) => i64::from_str_radix(number.as_str(), number.radix())
            .map_or(TypedValue::Other("a number that is too large"), TypedValue::Whole),
        DeValue::Boolean(switch) => TypedValue::Switch(*switch),
        DeValue::Array(list) => {
            TypedValue::List(list.iter().map(|value| convert(value.get_ref(), line_of)).collect())
        }
        DeValue::Float(number) => {
            number.as_str().parse().map_or(TypedValue::Other("a fraction"), TypedValue::Fraction)
        }
        DeValue::Datetime(_) => TypedValue::Other("a date"),
        DeValue::Table(table) => TypedValue::Table(
            table
                .iter()
                .map(|(key, value)| {
                    let line = line_of(key.span().start);
                    (key.get_ref().to_string(), line, convert(value.get_ref(), line_of))
                })
                .collect(),
        ),
    }
}

/// Returns `; did you mean ...?`, or a list of all known names if no name is similar.
pub(crate) fn did_you_mean<'a>(
    typed: &str,
    known: impl Iterator<Item = &'a str> + Clone,
) -> String {
    let nearest = known.clone().map(|name| (strsim::levenshtein(typed, name), name)).min();
    match nearest {
        Some((steps, name)) if steps <= 2 + name.len() / 4 => format!("; did you mean `{name}`?"),
        _ => format!("; there are {}", known.collect::<Vec<_>>().join(", ")),
    }
}
