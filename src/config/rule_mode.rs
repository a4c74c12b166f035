//! The modes of the rules about names and about trusted keys, as settings.

use hark_server::nostr::RuleMode;

use super::setting_type::{SettingType, quoted, wanted};
use super::value::TypedValue;

/// The modes, with their names.
const MODES: [(RuleMode, &str); 3] =
    [(RuleMode::Off, "off"), (RuleMode::Watch, "watch"), (RuleMode::Require, "require")];

impl SettingType for RuleMode {
    fn read(value: &TypedValue) -> Result<Self, String> {
        let typed = String::read(value).ok();
        let mode = MODES.iter().find(|(_, name)| typed.as_deref() == Some(name));
        mode.map_or_else(
            || wanted("\"off\", \"watch\" or \"require\"", value),
            |(mode, _)| Ok(*mode),
        )
    }

    fn show(&self) -> String {
        let mode = MODES.iter().find(|(mode, _)| mode == self);
        quoted(mode.map_or("off", |(_, name)| *name))
    }
}
