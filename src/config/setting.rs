//! A setting: its name, its documentation, and the field of [`Config`] that it sets.

use super::value::TypedValue;
use super::values::Config;

/// A `[section]` of the file.
pub(crate) struct SettingsSection {
    pub(crate) name: &'static str,
    pub(crate) doc: &'static str,
    pub(crate) settings: &'static [Setting],
}

/// One `key = value`.
pub(crate) struct Setting {
    pub(crate) key: &'static str,
    pub(crate) doc: &'static str,
    /// The value as TOML.
    pub(crate) show: fn(&Config) -> String,
    pub(crate) set: fn(&mut Config, &TypedValue) -> Result<(), String>,
    /// Whether two configurations have the same value, including its secret parts.
    pub(crate) is_same: fn(&Config, &Config) -> bool,
}

impl std::fmt::Debug for Setting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.key)
    }
}

macro_rules! settings {
    ($($key:literal $($field:ident).+ : $doc:literal;)*) => {
        &[$(Setting {
            key: $key,
            doc: $doc,
            show: |config| config.$($field).+.show(),
            set: |config, value| {
                config.$($field).+ = SettingType::read(value)?;
                Ok(())
            },
            is_same: |one, other| one.$($field).+ == other.$($field).+,
        }),*]
    };
}

pub(super) use settings;
