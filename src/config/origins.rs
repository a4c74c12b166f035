//! The origins of the values that a preset can set.

use hark_server::waku::SelectedPreset;

use super::settings;
use super::values::Config;
use super::waku::{PRESET, PRESET_KEYS};

impl Config {
    /// Returns the origin of a value that the selected preset can set: the preset, or the place of
    /// the setting that overrides the preset. Returns `None` for other settings, and if no preset is
    /// selected.
    pub(super) fn preset_origin(&self, section: &str, key: &str) -> Option<String> {
        let preset = self.waku.preset?;
        if section != PRESET.0 || !PRESET_KEYS.contains(&key) {
            return None;
        }
        let typed = self.origins.iter().find(|(place, _)| **place == (section, key));
        Some(match typed {
            Some((_, origin)) => origin.to_string(),
            None => format!("preset {:?}", preset.name()),
        })
    }

    /// Returns a line with the values of the selected preset, and a line for each setting that
    /// overrides one of these values.
    pub(crate) fn preset_notes(&self) -> Vec<String> {
        let Some(preset) = self.waku.preset else { return Vec::new() };
        let sections = settings::SECTIONS.iter().filter(|section| section.name == PRESET.0);
        let settings = sections.flat_map(|section| section.settings);
        let (mut of_preset, mut overrides) = (Vec::new(), Vec::new());
        for setting in settings.filter(|setting| PRESET_KEYS.contains(&setting.key)) {
            let value = (setting.show)(self);
            match self.origins.iter().find(|(place, _)| **place == (PRESET.0, setting.key)) {
                None => of_preset.push(format!("{} = {value}", setting.key)),
                Some((_, origin)) => overrides.push(format!(
                    "[{}] `{}` = {value} ({origin}) overrides preset {:?}",
                    PRESET.0,
                    setting.key,
                    preset.name()
                )),
            }
        }
        let line = format!("preset {:?} sets {}", preset.name(), of_preset.join(", "));
        std::iter::once(line).chain(overrides).collect()
    }

    /// Returns the selected preset, with the settings that override its values.
    pub(super) fn selected_preset(&self) -> Option<SelectedPreset> {
        let name = self.waku.preset?.name();
        let is_typed = |key: &&'static str| self.origins.contains_key(&(PRESET.0, *key));
        let overridden = PRESET_KEYS.into_iter().filter(is_typed).collect();
        Some(SelectedPreset { name, overridden })
    }
}
