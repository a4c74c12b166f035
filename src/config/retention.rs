//! The settings of retention: rules, intervals, and the time within which deleted records are gone
//! from the files.

use hark_archive::Key;
use hark_archive::retention::RetentionRule;

use super::keys;
use super::setting_type::{SettingType, quoted, wanted};
use super::value::{TypedValue, did_you_mean};
use hark_codec::hex;

/// Seconds within which deleted records are gone from the files. `None` sets no bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EraseBound(pub(crate) Option<u64>);

/// Seconds between two rounds of retention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct IntervalSeconds(pub(super) u64);

/// A number of seconds.
impl SettingType for IntervalSeconds {
    fn read(value: &TypedValue) -> Result<Self, String> {
        match u64::read(value)? {
            0 => wanted("at least 1", value),
            seconds => Ok(Self(seconds)),
        }
    }

    fn show(&self) -> String {
        self.0.to_string()
    }
}

/// An age such as "7d".
impl SettingType for EraseBound {
    fn read(value: &TypedValue) -> Result<Self, String> {
        Ok(Self(Some(any_age(value)?).filter(|seconds| *seconds > 0)))
    }

    fn show(&self) -> String {
        let (seconds, day) = (self.0.unwrap_or(0), 86_400);
        let days = seconds > 0 && seconds % day == 0;
        quoted(&if days { format!("{}d", seconds / day) } else { format!("{seconds}s") })
    }
}

impl SettingType for Vec<RetentionRule> {
    fn read(value: &TypedValue) -> Result<Self, String> {
        match value.entries() {
            Some(list) => list.iter().map(rule).collect(),
            None => wanted("a list of rules in TOML", value),
        }
    }

    fn show(&self) -> String {
        let rules: Vec<String> = self.iter().map(show_rule).collect();
        format!("[{}]", rules.join(", "))
    }
}

fn rule(value: &TypedValue) -> Result<RetentionRule, String> {
    const KEYS: [&str; 4] = ["kinds", "not_kinds", "authors", "older_than"];
    let TypedValue::Table(table) = value else {
        return wanted("a rule like { older_than = \"90d\" }", value);
    };
    let mut rule = RetentionRule::default();
    let mut older_than = None;
    for (key, line, value) in table {
        let read = match key.as_str() {
            "kinds" => SettingType::read(value).map(|kinds| rule.kinds = Some(kinds)),
            "not_kinds" => SettingType::read(value).map(|kinds| rule.not_kinds = kinds),
            "authors" => authors(value).map(|authors| rule.authors = Some(authors)),
            "older_than" => age(value).map(|age_s| older_than = Some(age_s)),
            _ => Err(format!("unknown{}", did_you_mean(key, KEYS.into_iter()))),
        };
        read.map_err(|fault| format!("`{key}` of a rule, line {line}: {fault}"))?;
    }
    // A rule without an age would delete records of any age, so the age is mandatory.
    rule.older_than_s = older_than.ok_or("has a rule without `older_than`, e.g. \"90d\"")?;
    Ok(rule)
}

fn age(value: &TypedValue) -> Result<u64, String> {
    match any_age(value)? {
        0 => Err("must be above 0; `hark delete` deletes events of any age".into()),
        age_s => Ok(age_s),
    }
}

fn any_age(value: &TypedValue) -> Result<u64, String> {
    let what = "an age like \"90d\" (s, m, h, d, w, y)";
    let (TypedValue::Text(text) | TypedValue::Bare(text)) = value else {
        return wanted(what, value);
    };
    let years = text.strip_suffix('y').and_then(|years| years.parse::<u64>().ok());
    let age_s =
        years.and_then(|years| years.checked_mul(365 * 86_400)).or_else(|| crate::when::age(text));
    age_s.map_or_else(|| wanted(what, value), Ok)
}

fn authors(value: &TypedValue) -> Result<Vec<Key>, String> {
    let what = "a list of public keys, each in hex or as npub1…";
    let TypedValue::List(list) = value else { return wanted(what, value) };
    let key = |value: &TypedValue| match value {
        TypedValue::Text(text) => keys::public_key(text),
        _ => wanted(what, value),
    };
    list.iter().map(key).collect()
}

/// Returns an age as typed in a setting, in the largest unit that leaves no remainder.
fn shown_age(seconds: u64) -> String {
    let units = [("y", 365 * 86_400), ("w", 7 * 86_400), ("d", 86_400), ("h", 3_600), ("m", 60)];
    let fits = units.iter().find(|(_, unit_s)| seconds > 0 && seconds.is_multiple_of(*unit_s));
    fits.map_or_else(
        || format!("{seconds}s"),
        |(unit, unit_s)| format!("{}{unit}", seconds / unit_s),
    )
}

fn show_rule(rule: &RetentionRule) -> String {
    let mut parts = Vec::new();
    if let Some(kinds) = &rule.kinds {
        parts.push(format!("kinds = {kinds:?}"));
    }
    if !rule.not_kinds.is_empty() {
        parts.push(format!("not_kinds = {:?}", rule.not_kinds));
    }
    if let Some(authors) = &rule.authors {
        let keys: Vec<String> =
            authors.iter().map(|key| format!("\"{}\"", hex::text_32(key))).collect();
        parts.push(format!("authors = [{}]", keys.join(", ")));
    }
    parts.push(format!("older_than = \"{}\"", shown_age(rule.older_than_s)));
    format!("{{ {} }}", parts.join(", "))
}
