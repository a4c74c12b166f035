//! The minimum and maximum of every number in the configuration. The bounds are chosen so that no
//! value overflows, panics, waits without end or allocates memory without need. Whether a value
//! makes sense is for the operator to decide.

use hark_store_embedded::{LOG_BYTES_MAX, SEAL_RECORDS_MAX};

use super::settings::SECTIONS;
use super::values::Config;

/// The maximum of counts that need no particular bound.
const ANY: u64 = 1_000_000_000_000;
/// The maximum of byte counts: a tebibyte.
const BYTES: u64 = 1 << 40;
/// Maximum bytes of an event or a message. A record may be twice as long, because of labels that do
/// not occur literally in the message, and still fits the store.
const MESSAGE: u64 = 16 << 20;
/// A hundred years.
const SECONDS: u64 = 100 * 365 * 86_400;
const MILLISECONDS: u64 = SECONDS * 1_000;
/// A hundred years. This length in nanoseconds still fits the database's integers.
const DAYS: u64 = 36_500;
const THREADS: u64 = 256;

/// A setting, its minimum and its maximum. [`RANGES`] groups them by section.
type SettingRange = (&'static str, u64, u64);
static RANGES: &[(&str, &[SettingRange])] = &[
    (
        "server",
        &[
            ("deflate_from_bytes", 0, BYTES),
            ("verify_threads", 0, THREADS),
            ("read_threads", 0, THREADS),
        ],
    ),
    (
        "archive",
        &[
            ("batch_writes_max", 1, 1 << 20),
            ("batch_bytes_max", 0, 1 << 30),
            ("batch_wait_ms", 0, 60_000),
            // The queue is allocated as a whole.
            ("queue_writes_max", 1, 1 << 20),
            ("seal_records", 1, SEAL_RECORDS_MAX as u64),
            ("log_bytes_max", 1, LOG_BYTES_MAX),
            ("head_bytes_max", 1 << 20, BYTES),
            ("scrub_days", 0, 3_650),
        ],
    ),
    (
        "postgres",
        &[
            ("connections_max", 1, 1_000),
            // A commit is statements too, and a busy disk takes some 100 ms. The database stores the
            // timeout as a signed 32-bit integer.
            ("statement_timeout_ms", 1_000, 2_147_483_647),
            ("part_days", 1, DAYS),
            ("shards", 1, 64_000),
        ],
    ),
    (
        "limits",
        &[
            ("connections_max", 1, ANY),
            ("connections_per_address_max", 1, ANY),
            ("handshake_timeout_ms", 1, MILLISECONDS),
            ("message_bytes_max", 1, 4 * MESSAGE),
            ("ping_after_s", 0, SECONDS),
            ("idle_timeout_s", 1, SECONDS),
            ("subscriptions_max", 1, ANY),
            ("subscription_bytes_max", 0, BYTES),
            ("subscription_id_chars_max", 1, ANY),
            ("filters_max", 1, ANY),
            ("filter_values_max", 1, ANY),
            ("limit_default", 0, ANY),
            ("limit_max", 1, ANY),
            ("negentropy_per_connection_max", 0, ANY),
            ("negentropy_events_max", 1, ANY),
            ("negentropy_connection_bytes_max", 0, BYTES),
            ("negentropy_bytes_max", 0, BYTES),
            // A message of 4 KiB as hex digits, plus the JSON around the digits.
            ("negentropy_message_bytes_max", 9_216, 4 * MESSAGE),
            ("negentropy_idle_s", 1, SECONDS),
            ("event_bytes_max", 1, MESSAGE),
            ("content_chars_max", 0, ANY),
            ("event_tags_max", 0, ANY),
            ("list_tags_max", 0, ANY),
            ("created_at_ahead_s_max", 0, SECONDS),
            ("created_at_behind_s_max", 0, SECONDS),
            ("auth_keys_max", 0, ANY),
            ("auth_age_s_max", 0, SECONDS),
            ("query_rows_max", 1, ANY),
            ("slice_rows", 1, ANY),
            ("searches_per_connection_max", 1, ANY),
            ("events_per_connection_max", 1, ANY),
            ("intake_bytes_max", 1, BYTES),
            ("outbox_pause_bytes", 0, BYTES),
            ("outbox_bytes_max", 0, BYTES),
            ("outboxes_per_address_bytes_max", 1 << 20, BYTES),
            ("outboxes_bytes_max", 1 << 20, BYTES),
            ("questions_bytes_max", 1 << 20, BYTES),
            ("inbound_bytes_max", 1 << 20, BYTES),
            ("held_bytes_max", 0, BYTES),
            ("control_connections_max", 0, 1 << 16),
            ("control_frame_bytes_max", 0, 1 << 30),
            // Each connection's queue is allocated as a whole.
            ("control_window", 1, 1 << 16),
            ("drain_timeout_ms", 0, MILLISECONDS),
            ("takeover_wait_ms", 0, MILLISECONDS),
            ("takeover_drain_s", 0, SECONDS),
            ("takeover_records_max", 0, ANY),
        ],
    ),
    (
        "rates",
        &[
            ("events_per_address", 0, ANY),
            ("events_per_key", 0, ANY),
            ("questions_per_address", 0, ANY),
            ("questions_per_key", 0, ANY),
            ("rows_per_connection", 0, ANY),
            ("rows_per_address", 0, ANY),
        ],
    ),
    // More work than 128 bits is not feasible.
    ("policy", &[("pow_bits_min", 0, 128)]),
    (
        "retention",
        &[
            ("bytes_max", 0, u64::MAX),
            ("free_bytes_min", 0, BYTES),
            ("every_s", 1, SECONDS),
            // The records that one write deletes are collected in memory first.
            ("batch_max", 1, 65_536),
            ("clock_ahead_max_s", 0, SECONDS),
        ],
    ),
    ("mirror", &[("stuck_after_s", 0, SECONDS), ("queue_bytes_max", 0, BYTES)]),
    (
        "waku",
        &[
            ("resume_max_s", 0, SECONDS),
            ("sync_every_s", 0, SECONDS),
            ("sync_range_s", 0, SECONDS),
            ("sync_jitter_s", 0, SECONDS),
            ("connections_max", 0, u32::MAX as u64),
            ("connections_per_address_max", 0, ANY),
            ("cluster", 0, u16::MAX as u64),
            ("shards_in_cluster", 1, u16::MAX as u64),
            ("message_bytes_max", 1, MESSAGE),
            ("window_s", 0, SECONDS),
            ("queries", 0, ANY),
            ("query_rows_max", 1, ANY),
            ("part_days", 1, DAYS),
        ],
    ),
    (
        "whisper",
        &[
            ("request_pause_s", 0, SECONDS),
            ("bare_range_max_s", 0, SECONDS),
            ("envelope_bytes_max", 1, MESSAGE),
            ("envelopes", 0, ANY),
            ("new_topics", 0, ANY),
            ("queries", 0, ANY),
            ("query_rows_max", 1, ANY),
            ("retention_days", 0, DAYS),
            ("bytes_max", 0, u64::MAX),
            ("part_days", 1, DAYS),
        ],
    ),
    ("log", &[("slow_question_ms", 0, MILLISECONDS)]),
];

/// Returns the minimum and maximum of a setting; `None` if it is not a number.
pub(crate) fn range(section: &str, key: &str) -> Option<(u64, u64)> {
    let (_, ranges) = RANGES.iter().find(|(known, _)| *known == section)?;
    ranges.iter().find(|(known, ..)| *known == key).map(|&(_, least, most)| (least, most))
}

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
            let Some((least, most)) = range(section.name, setting.key) else { continue };
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
                        range(section.name, setting.key).is_some(),
                        "{}.{} is a number without bounds",
                        section.name,
                        setting.key
                    );
                    found += 1;
                }
            }
        }
        let ranges: usize = RANGES.iter().map(|(_, ranges)| ranges.len()).sum();
        assert_eq!(found, ranges, "a range without a setting");
    }

    /// Whether a setting is a rate with two numbers: per minute, and at once.
    fn is_rate(section: &str, key: &str) -> bool {
        let elsewhere = [
            ("waku", "queries"),
            ("whisper", "queries"),
            ("whisper", "envelopes"),
            ("whisper", "new_topics"),
        ];
        section == "rates" && !key.starts_with("spared_") || elsewhere.contains(&(section, key))
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
        for (section, ranges) in RANGES {
            for &(key, least, most) in *ranges {
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
        let mut text = String::from("# Made from src/config/bounds.rs, which compares it.\n");
        for (section, ranges) in RANGES {
            writeln!(text, "\n[{section}]").unwrap();
            for &(key, least, most) in *ranges {
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
