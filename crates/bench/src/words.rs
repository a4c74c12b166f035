//! Formats numbers and sizes for people.

/// Formats a number with commas: 1234567 as `1,234,567`.
pub(crate) fn number(value: u64) -> String {
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

/// Formats a figure with three significant digits, or with all digits before the point: 0.0712,
/// 4.63, 98.1, 1,234. Whole numbers have no fraction.
pub(crate) fn figure(value: f64) -> String {
    let size = value.abs();
    match size {
        _ if !value.is_finite() => "-".into(),
        _ if size < 5e-5 => "0".into(),
        _ if size.fract() == 0.0 && size < 100.0 => format!("{value:.0}"),
        _ if size < 0.1 => format!("{value:.4}"),
        _ if size < 1.0 => format!("{value:.3}"),
        _ if size < 10.0 => format!("{value:.2}"),
        _ if size < 100.0 => format!("{value:.1}"),
        _ => {
            let sign = if value < 0.0 { "-" } else { "" };
            format!("{sign}{}", number(size.round() as u64))
        }
    }
}

/// Formats a size with a decimal unit, as is usual for files: 1073741824 as `1.1 GB`.
pub(crate) fn bytes(value: u64) -> String {
    let (mut size, mut unit) = (value as f64, "B");
    for larger in ["KB", "MB", "GB", "TB"] {
        if size < 1000.0 {
            break;
        }
        size /= 1000.0;
        unit = larger;
    }
    if unit == "B" { format!("{value} B") } else { format!("{size:.1} {unit}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_for_people() {
        assert_eq!([number(0), number(999), number(1_234_567)], ["0", "999", "1,234,567"]);
        assert_eq!([bytes(999), bytes(1_073_741_824)], ["999 B", "1.1 GB"]);
        let figures = [0.0, 3.0, 0.0712, 0.5, 4.634, 98.06, 1234.4, f64::NAN].map(figure);
        assert_eq!(figures, ["0", "3", "0.0712", "0.500", "4.63", "98.1", "1,234", "-"]);
    }
}
