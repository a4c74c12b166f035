//! Numbers, sizes and times as people read them: on the page, in logs and on the terminal.

use time::OffsetDateTime;

/// Formats a number with separators: 1234567 as `1,234,567`.
pub fn number(value: u64) -> String {
    let digits = value.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Formats a size in binary units: 1536 as `1.5 KiB`.
pub fn bytes(value: u64) -> String {
    if value < 1024 {
        return format!("{value} B");
    }
    let mut size = value as f64;
    let mut unit = "B";
    for larger in ["KiB", "MiB", "GiB", "TiB", "PiB"] {
        if size < 1024.0 {
            break;
        }
        size /= 1024.0;
        unit = larger;
    }
    format!("{size:.1} {unit}")
}

/// Formats a size that an operator has set: in a decimal unit if this needs no fraction (50000000
/// as `50 MB`), and otherwise with [`bytes()`].
pub fn size_set(value: u64) -> String {
    let units = [("GB", 1_000_000_000), ("MB", 1_000_000), ("kB", 1_000)];
    let fits = units.iter().find(|(_, unit)| value >= *unit && value.is_multiple_of(*unit));
    fits.map_or_else(|| bytes(value), |(name, unit)| format!("{} {name}", number(value / unit)))
}

/// Formats a duration in the largest unit that leaves no remainder: 5400 seconds as `90 minutes`.
pub fn age(seconds: u64) -> String {
    let units = [("year", 365 * 86_400), ("day", 86_400), ("hour", 3_600), ("minute", 60)];
    let fits =
        units.iter().find(|(_, unit_s)| seconds >= *unit_s && seconds.is_multiple_of(*unit_s));
    let (unit, count) =
        fits.map_or(("second", seconds), |(unit, unit_s)| (*unit, seconds / unit_s));
    self::count(count, unit)
}

/// Formats a number and its noun: 1 and `log` as `1 log`, 1234 and `log` as `1,234 logs`. `noun`
/// gets an s unless the value is 1.
pub fn count(value: u64, noun: &str) -> String {
    format!("{} {noun}{}", number(value), if value == 1 { "" } else { "s" })
}

/// Cuts a text to a number of characters, with an ellipsis if something is cut off.
pub fn cut(text: &str, chars_max: usize) -> String {
    match text.char_indices().nth(chars_max) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_owned(),
    }
}

/// Formats a number that may be negative. `shown` formats the number without its sign.
pub fn signed(number: f64, shown: impl Fn(u64) -> String) -> String {
    let text = shown(number.abs().round() as u64);
    if number <= -0.5 { format!("-{text}") } else { text }
}

/// Formats a duration in whole days, or in whole hours below two days.
pub fn span(seconds: u64) -> String {
    let (unit, unit_s) = if seconds < 2 * 86_400 { ("hour", 3_600) } else { ("day", 86_400) };
    count((seconds + unit_s / 2) / unit_s, unit)
}

/// Formats seconds since 1970 as a date and a time (UTC), such as `2024-02-29 12:30:00`.
pub fn moment(seconds: u64) -> String {
    let time =
        i64::try_from(seconds).ok().and_then(|at| OffsetDateTime::from_unix_timestamp(at).ok());
    time.map_or_else(
        || date(seconds),
        |time| {
            let (hour, minute, second) = time.to_hms();
            format!("{} {hour:02}:{minute:02}:{second:02}", time.date())
        },
    )
}

/// Formats seconds since 1970 as a date (UTC), such as `2024-02-29`.
pub fn date(seconds: u64) -> String {
    let time =
        i64::try_from(seconds).ok().and_then(|at| OffsetDateTime::from_unix_timestamp(at).ok());
    time.map_or_else(|| "after 9999-12-31".into(), |time| time.date().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_for_people() {
        assert_eq!(
            [number(0), number(999), number(1000), number(1_234_567)],
            ["0", "999", "1,000", "1,234,567"]
        );
        assert_eq!([bytes(1023), bytes(1536), bytes(5 << 30)], ["1023 B", "1.5 KiB", "5.0 GiB"]);
        assert_eq!([size_set(50_000_000), size_set(1_500_000_000)], ["50 MB", "1,500 MB"]);
        assert_eq!([size_set(5 << 30), size_set(128 << 10)], ["5.0 GiB", "128.0 KiB"]);
        assert_eq!([age(0), age(1), age(900)], ["0 seconds", "1 second", "15 minutes"]);
        assert_eq!([count(1, "log"), count(0, "log")], ["1 log", "0 logs"]);
        assert_eq!([age(90 * 86_400), age(2 * 365 * 86_400)], ["90 days", "2 years"]);
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (seconds, day) in [
            (0, "1970-01-01"),
            (951_782_399, "2000-02-28"),
            (951_782_400, "2000-02-29"),
            (951_868_800, "2000-03-01"),
            (1_709_164_800, "2024-02-29"),
            (1_735_689_599, "2024-12-31"),
            (4_107_542_400, "2100-03-01"),
        ] {
            assert_eq!(date(seconds), day, "{seconds}");
        }
        assert_eq!(date(253_402_300_799), "9999-12-31");
        assert_eq!([253_402_300_800, u64::MAX].map(date), ["after 9999-12-31"; 2]);
        assert_eq!(moment(1_709_210_096), "2024-02-29 12:34:56");
        assert_eq!(moment(u64::MAX), "after 9999-12-31");
    }
}
