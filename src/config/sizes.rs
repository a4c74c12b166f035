//! Sizes as typed in settings: a number of bytes, or a number with a unit, such as `"50GB"`.

use super::value::TypedValue;

/// The units of sizes, and the bytes of each.
const UNITS: [(&str, u64); 9] = [
    ("kib", 1 << 10),
    ("mib", 1 << 20),
    ("gib", 1 << 30),
    ("tib", 1 << 40),
    ("kb", 1_000),
    ("mb", 1_000_000),
    ("gb", 1_000_000_000),
    ("tb", 1_000_000_000_000),
    ("b", 1),
];

/// Returns the value of the setting `key`, with a textual size converted to a number of bytes.
/// Other texts, and values of settings that are no sizes, are returned unchanged.
pub(super) fn in_bytes(key: &str, value: &TypedValue) -> TypedValue {
    let (TypedValue::Text(text) | TypedValue::Bare(text)) = value else { return value.clone() };
    let bytes = bytes(text).filter(|_| is_size(key)).and_then(|bytes| i64::try_from(bytes).ok());
    bytes.map_or_else(|| value.clone(), TypedValue::Whole)
}

/// Whether the setting `key` is a number of bytes.
pub(super) fn is_size(key: &str) -> bool {
    ["_bytes", "bytes_max", "bytes_min"].iter().any(|ending| key.ends_with(ending))
}

/// Parses a size with a unit, such as `50GB`, `1.5 GiB` or `64mib`. Returns `None` for other texts,
/// and for sizes above 2^64.
fn bytes(text: &str) -> Option<u64> {
    let text = text.trim().to_ascii_lowercase();
    let unit = UNITS.iter().find_map(|(unit, bytes)| Some((text.strip_suffix(unit)?, *bytes)));
    let (number, unit) = unit?;
    let number = number.trim_end().replace('_', "");
    let (whole, part) = number.split_once('.').unwrap_or((&number, ""));
    let whole = whole.parse::<u64>().ok()?.checked_mul(unit)?;
    if part.is_empty() {
        return (!number.ends_with('.')).then_some(whole);
    }
    let scale = 10_u64.checked_pow(u32::try_from(part.len()).ok()?)?;
    let part = u128::from(part.parse::<u64>().ok()?) * u128::from(unit) / u128::from(scale);
    whole.checked_add(u64::try_from(part).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units_of_a_thousand_or_of_1024() {
        for (text, size) in [
            ("50GB", 50_000_000_000),
            (" 50 gb ", 50_000_000_000),
            ("64MiB", 64 << 20),
            ("1.5GiB", 3 << 29),
            ("1_000kB", 1_000_000),
            ("0.001kb", 1),
            ("7b", 7),
            ("2TiB", 2 << 40),
        ] {
            assert_eq!(bytes(text), Some(size), "{text}");
        }
        for text in ["", "b", "50", "GB", "5.GB", ".5GB", "-1GB", "1e3GB", "5 0GB x", "99999999TB"]
        {
            assert_eq!(bytes(text), None, "{text}");
        }
        let typed = |key, text: &str| in_bytes(key, &TypedValue::Text(text.into()));
        assert_eq!(typed("bytes_max", "1kB"), TypedValue::Whole(1_000));
        assert_eq!(typed("outbox_pause_bytes", "1KiB"), TypedValue::Whole(1_024));
        assert_eq!(typed("name", "1kB"), TypedValue::Text("1kB".into()));
        assert_eq!(typed("bytes_max", "much"), TypedValue::Text("much".into()));
    }
}
