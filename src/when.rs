//! Points in time as typed on the command line.

use std::time::{SystemTime, UNIX_EPOCH};

use time::{Date, Month};

/// Returns the current time, in seconds since 1970.
pub(crate) fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Parses seconds since 1970, a UTC date (`2024-01-31`, with or without `T12:30:00` and `Z`), or an
/// age (`90s 15m 12h 7d 2w`).
pub(crate) fn parse(text: &str) -> Result<u64, String> {
    if let Ok(seconds) = text.parse() {
        return Ok(seconds);
    }
    if let Some(age_s) = age(text) {
        return Ok(now_s().saturating_sub(age_s));
    }
    date(text).ok_or_else(|| {
        "not a time: give seconds since 1970, a date like 2024-01-31 or 2024-01-31T12:30:00 (UTC), \
         or an age like 12h or 7d"
            .into()
    })
}

/// Parses a length of time (`90s 15m 12h 7d 2w`), in seconds.
pub(crate) fn age(text: &str) -> Option<u64> {
    let unit_s = match text.chars().last()? {
        's' => 1,
        'm' => 60,
        'h' => 3600,
        'd' => 86_400,
        'w' => 7 * 86_400,
        _ => return None,
    };
    text[..text.len() - 1].parse::<u64>().ok()?.checked_mul(unit_s)
}

fn date(text: &str) -> Option<u64> {
    let (day, time) = text.strip_suffix('Z').unwrap_or(text).split_once('T').unwrap_or((text, ""));
    let [year, month, day] = numbers(day, '-')?;
    let [hour, minute, second] = if time.is_empty() { [0; 3] } else { numbers(time, ':')? };
    let month = Month::try_from(u8::try_from(month).ok()?).ok()?;
    let day = Date::from_calendar_date(year.into(), month, day.try_into().ok()?).ok()?;
    let [hour, minute, second] = [hour, minute, second].map(u8::try_from);
    let time = day.with_hms(hour.ok()?, minute.ok()?, second.ok()?).ok()?;
    time.assume_utc().unix_timestamp().try_into().ok()
}

fn numbers(text: &str, between: char) -> Option<[u16; 3]> {
    let mut parts = text.split(between).map(str::parse);
    let three = [parts.next()?.ok()?, parts.next()?.ok()?, parts.next()?.ok()?];
    parts.next().is_none().then_some(three)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read() {
        for (text, seconds) in [
            ("0", 0),
            ("1700000000", 1_700_000_000),
            ("1970-01-01", 0),
            ("2023-11-14T22:13:20Z", 1_700_000_000),
            ("2000-02-29", 951_782_400),
            ("2000-2-29T", 951_782_400),
            ("9999-12-31", 253_402_214_400),
            ("2024-12-31T23:59:59", 1_735_689_599),
        ] {
            assert_eq!(parse(text), Ok(seconds), "{text}");
        }
        assert!(now_s().abs_diff(parse("7d").unwrap() + 7 * 86_400) <= 1);
        for text in ["", "d", "2023-02-29", "2024-13-01", "2024-01-31T24:00:00", "1-2-3-4", "-5"] {
            assert!(parse(text).is_err(), "{text}");
        }
        for text in ["1969-12-31", "10000-01-01", "2024-00-10", "2024-1-0", "2024-01-31T12:30"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
