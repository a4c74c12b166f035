//! The settings of the log.

use std::time::Duration;

use hark_server::AddressPrivacy;
use tracing::Level;
use tracing_subscriber::filter::Targets;

use super::setting_type::{SettingType, quoted, wanted};
use super::value::TypedValue;

/// The level and the format of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LogSettings {
    pub(crate) level: String,
    pub(crate) format: LogFormat,
    pub(crate) slow_question_ms: Option<u64>,
    pub(crate) refusals_from: Option<u64>,
    pub(crate) addresses: AddressPrivacy,
}

impl Default for LogSettings {
    fn default() -> Self {
        Self {
            level: "info".into(),
            format: LogFormat::Text,
            slow_question_ms: Some(1_000),
            refusals_from: Some(10),
            addresses: AddressPrivacy::Whole,
        }
    }
}

impl LogSettings {
    /// Returns the duration above which queries are logged as slow; `None` if slow queries are not
    /// logged.
    pub(crate) fn slow_question(&self) -> Option<Duration> {
        self.slow_question_ms.map(Duration::from_millis)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum LogFormat {
    /// For people.
    Text,
    /// One object a line, for programs.
    Json,
}

/// The names of levels.
const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

/// A log target that warns of each invalid message of a peer. With these warnings, a peer could
/// fill the log.
const LOUD: &str = "libp2p_gossipsub";

/// Parses a level, or a filter: a level and `target=level`, separated by commas. An unknown word is
/// an error: as the name of a target, it would turn off the log of everything else. With `info` or
/// `warn` alone, the warnings of [`LOUD`] are left out.
pub(crate) fn filter(text: &str) -> Result<Targets, String> {
    for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        let level = part.rsplit_once('=').map_or(part, |(_, level)| level.trim());
        if !LEVELS.iter().any(|known| known.eq_ignore_ascii_case(level)) {
            return Err(format!(
                "{level:?} is no level; there are error, warn, info, debug and trace, and filters \
                 such as \"warn,hark_server=debug\""
            ));
        }
    }
    if text.trim().is_empty() {
        return Err("is empty; \"off\" logs nothing".into());
    }
    let wanted = text
        .parse::<Targets>()
        .map_err(|error| format!("{text:?} is neither a level nor a filter: {error}"))?;
    let is_plain = ["info", "warn"].iter().any(|level| level.eq_ignore_ascii_case(text.trim()));
    Ok(if is_plain { wanted.with_target(LOUD, Level::ERROR) } else { wanted })
}

impl SettingType for LogFormat {
    fn read(value: &TypedValue) -> Result<Self, String> {
        match value {
            TypedValue::Text(text) | TypedValue::Bare(text) if text == "text" => Ok(Self::Text),
            TypedValue::Text(text) | TypedValue::Bare(text) if text == "json" => Ok(Self::Json),
            _ => wanted("\"text\" or \"json\"", value),
        }
    }

    fn show(&self) -> String {
        quoted(if *self == Self::Json { "json" } else { "text" })
    }
}

/// The forms of addresses, by their names.
const ADDRESS_FORMS: [(&str, AddressPrivacy); 3] = [
    ("whole", AddressPrivacy::Whole),
    ("prefix", AddressPrivacy::Prefix),
    ("hash", AddressPrivacy::Hash),
];

impl SettingType for AddressPrivacy {
    fn read(value: &TypedValue) -> Result<Self, String> {
        let text = match value {
            TypedValue::Text(text) | TypedValue::Bare(text) => text.as_str(),
            _ => "",
        };
        let named = ADDRESS_FORMS.iter().find(|(name, _)| *name == text);
        let what = "\"whole\", \"prefix\" or \"hash\"";
        named.map_or_else(|| wanted(what, value), |(_, form)| Ok(*form))
    }

    fn show(&self) -> String {
        let named = ADDRESS_FORMS.iter().find(|(_, form)| form == self);
        quoted(named.map_or("", |(name, _)| name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_do_not_fill_the_log_unless_the_operator_asks_for_it() {
        for (text, is_shown) in [
            ("info", false),
            ("WARN", false),
            ("off", false),
            ("debug", true),
            ("info,libp2p_gossipsub=warn", true),
        ] {
            let wanted = filter(text).unwrap();
            let shown = wanted.would_enable("libp2p_gossipsub::behaviour", &Level::WARN);
            assert_eq!(shown, is_shown, "{text}");
        }
    }

    #[test]
    fn a_word_that_is_no_level_is_refused_and_not_taken_for_a_target() {
        for text in ["info", "WARN", "off", "warn,hark_server=debug", "hark_archive=trace, error"] {
            assert!(filter(text).is_ok(), "{text}");
        }
        for text in ["verbose", "", " ", "hark_server", "warn,loud", "a=b=c", "hark=9", "loud=1=2"]
        {
            assert!(filter(text).is_err(), "{text}");
        }
    }
}
