//! Checks the numbers of a configuration against their minima and maxima in the table of settings.

use super::settings::SECTIONS;
use super::values::Config;

/// Returns the numbers in a value: one, or the two of a rate.
fn numbers(shown: &str) -> Vec<u64> {
    let bare = shown.trim_start_matches('[').trim_end_matches(']');
    bare.split(',').filter_map(|number| number.trim().parse().ok()).collect()
}

/// Returns one line for each number that is too small or too large.
pub(super) fn faults(config: &Config) -> Vec<String> {
    let mut faults = Vec::new();
    for section in SECTIONS {
        for setting in section.settings {
            let Some((least, most)) = setting.bounds else { continue };
            let shown = (setting.show)(config);
            if numbers(&shown).iter().any(|number| !(least..=most).contains(number)) {
                let (name, key) = (section.name, setting.key);
                faults.push(format!(
                    "[{name}] `{key}` must be from {least} to {most}, but is {shown}"
                ));
            }
        }
    }
    faults
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use super::*;
    use crate::config::setting::{Setting, SettingsSection};
    use crate::config::value::TypedValue;

    #[test]
    fn every_number_has_its_least_and_its_most() {
        let config = Config::default();
        let mut found = 0;
        for section in SECTIONS {
            for setting in section.settings {
                let shown = (setting.show)(&config);
                if shown.parse::<u64>().is_ok() || is_rate(section.name, setting.key) {
                    assert!(
                        setting.bounds.is_some(),
                        "{}.{} is a number without bounds",
                        section.name,
                        setting.key
                    );
                    found += 1;
                }
            }
        }
        let settings = SECTIONS.iter().flat_map(|section| section.settings);
        let bounded = settings.filter(|setting| setting.bounds.is_some()).count();
        assert_eq!(found, bounded, "bounds of a setting that is no number");
    }

    /// Whether a setting is a rate with two numbers: per minute, and at once.
    fn is_rate(section: &str, key: &str) -> bool {
        let elsewhere = [
            ("waku", "queries"),
            ("waku", "filter_requests"),
            ("waku", "light_pushes"),
            ("whisper", "queries"),
            ("whisper", "envelopes"),
            ("whisper", "new_topics"),
        ];
        section == "rates" && key.contains("_per_") || elsewhere.contains(&(section, key))
    }

    /// Returns the faults of the defaults with one setting changed to `number`.
    fn faults_with(section: &str, key: &str, number: u64) -> Result<Vec<String>, String> {
        let mut config = Config::default();
        let sections = SECTIONS.iter().filter(|known| known.name == section);
        let mut settings = sections.flat_map(|section| section.settings);
        let setting = settings.find(|setting| setting.key == key).expect("a setting");
        let text = if is_rate(section, key) {
            format!("[{number}, {number}]")
        } else {
            number.to_string()
        };
        (setting.set)(&mut config, &TypedValue::Bare(text))?;
        Ok(faults(&config))
    }

    #[test]
    fn what_is_within_is_taken_and_what_is_beyond_is_refused_by_name() {
        for SettingsSection { name: section, settings, .. } in SECTIONS {
            for Setting { key, bounds, .. } in *settings {
                let Some((least, most)) = *bounds else { continue };
                for number in [least, most] {
                    let taken = faults_with(section, key, number);
                    assert_eq!(taken, Ok(Vec::new()), "[{section}] {key} = {number}");
                }
                for number in [least.checked_sub(1), most.checked_add(1)].into_iter().flatten() {
                    // Some types already refuse the number when it is parsed.
                    if let Ok(refused) = faults_with(section, key, number) {
                        let named = refused.iter().any(|fault| fault.contains(&format!("`{key}`")));
                        assert!(named, "[{section}] {key} = {number} is taken");
                    }
                }
            }
        }
    }

    /// A configuration in which `pick` chooses each number from its minimum and maximum.
    fn extreme(pick: impl Fn(u64, u64) -> u64) -> String {
        let mut text = String::from("# Made from src/config/ranges.rs, which compares it.\n");
        for SettingsSection { name: section, settings, .. } in SECTIONS {
            if settings.iter().any(|setting| setting.bounds.is_some()) {
                writeln!(text, "\n[{section}]").unwrap();
            }
            for Setting { key, bounds, .. } in *settings {
                let Some((least, most)) = *bounds else { continue };
                // TOML's integers are signed 64-bit.
                let number = pick(least, most).min(i64::MAX as u64);
                let value = if is_rate(section, key) {
                    format!("[{number}, {number}]")
                } else {
                    number.to_string()
                };
                writeln!(text, "{key} = {value}").unwrap();
            }
        }
        text
    }

    #[test]
    fn the_extremes_that_a_server_is_tried_with_are_these() {
        let least = extreme(|least, _| least);
        assert_eq!(include_str!("../../tests/extremes/least.toml"), least, "write:\n{least}");
        let most = extreme(|_, most| most);
        assert_eq!(include_str!("../../tests/extremes/most.toml"), most, "write:\n{most}");
    }

    #[test]
    fn a_log_that_is_too_long_and_a_head_that_is_too_large_are_refused() {
        let said = faults_with("archive", "log_bytes_max", 8_000_000_000).unwrap();
        assert_eq!(
            said,
            ["[archive] `log_bytes_max` must be from 1 to 2147483648, but is 8000000000"]
        );
        assert!(!faults_with("archive", "seal_records", 4_194_305).unwrap().is_empty());
    }
}
