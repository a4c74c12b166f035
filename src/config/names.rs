//! The settings of verified names (NIP-05).

use hark_server::nostr::NameMode;

use super::setting_type::{SettingType, quoted, wanted};
use super::value::TypedValue;

/// The modes, with their names.
const MODES: [(NameMode, &str); 3] =
    [(NameMode::Off, "off"), (NameMode::Watch, "watch"), (NameMode::Require, "require")];

impl SettingType for NameMode {
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
