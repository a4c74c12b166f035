//! A setting: its name, its documentation, its bounds, and the field of [`Config`] that it sets.

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
    /// The minimum and the maximum of a number, or of the two numbers of a rate.
    pub(crate) bounds: Option<(u64, u64)>,
    /// Whether a change takes effect without a restart.
    pub(crate) is_live: bool,
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

/// Makes rows of the table of settings. A row has the key, the field of `Config`, the minimum and
/// the maximum of a number in brackets, `live` if a running server applies a change, and the
/// documentation.
macro_rules! settings {
    (@bounds) => {
        None
    };
    (@bounds $least:expr, $most:expr) => {
        Some(($least, $most))
    };
    (@live) => {
        false
    };
    (@live live) => {
        true
    };
    ($($key:literal $($field:ident).+ $([$least:expr, $most:expr])? $($live:ident)? : $doc:literal;)*) => {
        &[$(Setting {
            key: $key,
            doc: $doc,
            bounds: settings!(@bounds $($least, $most)?),
            is_live: settings!(@live $($live)?),
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
