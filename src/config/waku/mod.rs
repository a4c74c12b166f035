//! The Waku node: its settings and its construction.

mod presets;
mod section;
mod settings;

pub(super) use presets::{PRESET, PRESET_KEYS};
pub(super) use section::{SECTION, SETUP};
pub(crate) use settings::WakuSettings;
