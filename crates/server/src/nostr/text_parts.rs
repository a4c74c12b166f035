//! Divides texts into their longest parts of letters and digits.
//!
//! Every received event passes this code, so ASCII is read eight bytes at a time, and nothing is
//! copied. Case is ignored: an ASCII letter gets its lower case from one bit, which digits have as
//! well.

/// A part of a text: letters and digits, with no letter and no digit on either side.
#[derive(Clone, Copy, Debug)]
pub(super) struct LetterRun<'t> {
    /// The part, whose ASCII letters may be in upper case. All other letters are in lower case.
    pub(super) text: &'t [u8],
    /// The first eight bytes of the part in lower case, followed by zeros if there are fewer.
    pub(super) first: u64,
    /// The last eight bytes of the part in lower case. 0 if there are fewer.
    pub(super) last: u64,
}

/// The letters whose lower case depends on other letters, or has another number of characters, or
/// is in ASCII although the letter is not. A text with one of these letters is first converted as a
/// whole.
const SPECIAL: [char; 3] = ['Σ', 'İ', '\u{212a}'];

/// A number whose eight bytes are all this byte.
const fn each(byte: u8) -> u64 {
    u64::from_le_bytes([byte; 8])
}

/// The bit that distinguishes lower case in ASCII, in each byte.
const LOWER: u64 = each(0x20);

/// Returns how many of the eight bytes are ASCII letters or digits, up to the first other byte.
#[inline]
fn letters(eight: u64) -> usize {
    let lower = eight | LOWER;
    // The highest bit of each byte tells whether the byte is at least `byte`.
    let from = |bytes: u64, byte: u8| (bytes & each(0x7f)) + each(0x80 - byte);
    let is_letter = from(lower, b'a') & !from(lower, b'z' + 1);
    let is_digit = from(eight, b'0') & !from(eight, b'9' + 1);
    let others = !((is_letter | is_digit) & !eight) & each(0x80);
    others.trailing_zeros() as usize / 8
}

/// Returns the eight bytes from `at` on, with zeros after the end of the text.
#[inline]
fn eight_at(text: &[u8], at: usize) -> u64 {
    let rest = text.get(at..).unwrap_or_default();
    if let Some(eight) = rest.first_chunk() {
        return u64::from_le_bytes(*eight);
    }
    match text.last_chunk() {
        Some(eight) if !rest.is_empty() => u64::from_le_bytes(*eight) >> (64 - 8 * rest.len()),
        Some(_) => 0,
        None => rest.iter().rev().fold(0, |eight, byte| eight << 8 | u64::from(*byte)),
    }
}

/// Returns the first bytes of `eight`, of which there are fewer than eight, in lower case.
#[inline]
fn lower_start(eight: u64, bytes: usize) -> u64 {
    (eight | LOWER) & ((1 << (8 * bytes)) - 1)
}

impl<'t> LetterRun<'t> {
    /// Makes a part of these letters and digits.
    #[inline]
    pub(super) fn new(text: &'t [u8]) -> Self {
        match (text.first_chunk(), text.last_chunk()) {
            (Some(first), Some(last)) => {
                let [first, last] = [first, last].map(|eight| u64::from_le_bytes(*eight) | LOWER);
                Self { text, first, last }
            }
            _ => Self { text, first: lower_start(eight_at(text, 0), text.len()), last: 0 },
        }
    }
}

/// Passes the parts of a text to `each`, in order, until `each` returns a value. Some parts may be
/// passed twice. Without `wide`, parts with letters beyond ASCII are left out.
pub(super) fn find_part<T>(
    text: &str,
    wide: bool,
    each: &mut impl FnMut(LetterRun<'_>) -> Option<T>,
) -> Option<T> {
    let (bytes, mut from) = (text.as_bytes(), 0);
    while from < bytes.len() {
        let first = eight_at(bytes, from);
        let mut letters_of_eight = letters(first);
        let mut at = from + letters_of_eight;
        while letters_of_eight == 8 {
            letters_of_eight = letters(eight_at(bytes, at));
            at += letters_of_eight;
        }
        let mut next = at + 1;
        if bytes.get(at).is_some_and(|byte| !byte.is_ascii()) {
            match char_beyond_ascii(text, at) {
                CharBeyondAscii::Special => return find_part(&text.to_lowercase(), wide, each),
                CharBeyondAscii::Other(bytes) => next = at + bytes,
                CharBeyondAscii::Letter => {
                    let Some(end) = part_end(text, at) else {
                        return find_part(&text.to_lowercase(), wide, each);
                    };
                    if let Some(part) = text.get(from..end).filter(|_| wide) {
                        let found = each(LetterRun::new(part.to_lowercase().as_bytes()));
                        if found.is_some() {
                            return found;
                        }
                    }
                    from = end;
                    continue;
                }
            }
        }
        let found = match at - from {
            0 => None,
            few @ 1..8 => {
                each(LetterRun { text: &bytes[from..at], first: lower_start(first, few), last: 0 })
            }
            _ => each(LetterRun::new(&bytes[from..at])),
        };
        if found.is_some() {
            return found;
        }
        from = next;
    }
    None
}

/// A character that is not in ASCII.
enum CharBeyondAscii {
    /// See [`SPECIAL`].
    Special,
    /// A letter or a digit.
    Letter,
    /// No letter and no digit, with this number of bytes.
    Other(usize),
}

fn char_beyond_ascii(text: &str, at: usize) -> CharBeyondAscii {
    let next = text.get(at..).and_then(|rest| rest.chars().next());
    match next {
        Some(next) if SPECIAL.contains(&next) => CharBeyondAscii::Special,
        Some(next) if next.is_alphanumeric() => CharBeyondAscii::Letter,
        next => CharBeyondAscii::Other(next.map_or(1, char::len_utf8)),
    }
}

/// Returns the end of the letters and digits that begin at `at`. `None` if one of these letters is
/// special.
fn part_end(text: &str, at: usize) -> Option<usize> {
    let rest = text.get(at..).unwrap_or_default();
    for (offset, next) in rest.char_indices() {
        if SPECIAL.contains(&next) {
            return None;
        }
        if !next.is_alphanumeric() {
            return Some(at + offset);
        }
    }
    Some(text.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(text: &str) -> Vec<String> {
        let mut parts = Vec::new();
        find_part(text, true, &mut |part| {
            let again = LetterRun::new(part.text);
            assert_eq!((part.first, part.last), (again.first, again.last));
            parts.push(String::from_utf8(part.text.to_ascii_lowercase()).unwrap());
            None::<()>
        });
        parts
    }

    #[test]
    fn a_text_is_divided_at_all_that_is_no_letter_and_no_digit() {
        for text in [
            "",
            " ",
            "one",
            "a bc-def,ghij;klmno/pqrstu:vwxyz01{23456789}x",
            "A BC-DEF,GHIJ;KLMNO/PQRSTU:VWXYZ01{23456789}X",
            "abcdefghijklmnopqrstuvwxyz0123456789",
            "`az{ /09: @AZ[\u{10}\u{19}\u{7f}",
            "Größe der STRASSE: это скам, ça va? \u{1f600}emoji\u{1f600}",
            "eightabc éightabcÉ abcdefg é É abcdefgÉhijk",
            "x\ny\tz\0",
        ] {
            let lower = text.to_lowercase();
            let split = lower.split(|letter: char| !letter.is_alphanumeric());
            let split: Vec<&str> = split.filter(|part| !part.is_empty()).collect();
            assert_eq!(parts(text), split, "{text}");
        }
        let mut parts = 0;
        find_part("ASCII größe ascii", false, &mut |_| {
            parts += 1;
            None::<()>
        });
        assert_eq!(parts, 2, "without `wide`");
    }

    /// The division of a text does not depend on case, apart from the special letters. So each part
    /// can be converted alone.
    #[test]
    fn every_other_letter_has_one_lower_case_of_its_own() {
        for letter in ('\u{80}'..=char::MAX).filter(|letter| !SPECIAL.contains(letter)) {
            let mut lower = letter.to_lowercase();
            let (Some(lower), None) = (lower.next(), lower.next()) else {
                panic!("{letter:?} has several lower cases");
            };
            assert!(!lower.is_ascii(), "{letter:?}");
            assert_eq!(lower.is_alphanumeric(), letter.is_alphanumeric(), "{letter:?}");
        }
        let mut found = Vec::new();
        for text in ["ΑΣ'Α aΣ", "İstanbul", "\u{212a}g", "ab\u{212a}g é", "abcdéİ"] {
            found.push(parts(text));
        }
        let expected: [Vec<String>; 5] = [
            vec!["ασ".into(), "α".into(), "aς".into()],
            vec!["i".into(), "stanbul".into()],
            vec!["kg".into()],
            vec!["abkg".into(), "é".into()],
            vec!["abcdéi".into()],
        ];
        assert_eq!(found, expected);
    }
}
