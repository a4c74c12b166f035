//! Folding removes differences in spelling that should not affect a search. Letters become lower
//! case, diacritics are dropped, and compatible forms, such as full-width letters and ligatures,
//! become plain forms.
//!
//! Other marks stay, because the marks of Thai and Devanagari are vowels, and a mark of kana makes
//! a different letter.

use unicode_normalization::char::{compose, decompose_compatible, is_combining_mark};

/// Whether a character is invisible by itself: a joiner, a direction mark or a variation selector.
pub(crate) fn is_invisible(c: char) -> bool {
    matches!(
        c,
        '\u{ad}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{2064}'
            | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{1f3fb}'..='\u{1f3ff}' | '\u{640}'
    )
}

/// Whether a mark is a diacritic, and not a vowel or a part of a letter.
fn is_diacritic(c: char) -> bool {
    matches!(
        c,
        '\u{300}'..='\u{36f}' | '\u{483}'..='\u{487}' | '\u{591}'..='\u{5c7}'
            | '\u{610}'..='\u{61a}' | '\u{64b}'..='\u{65f}' | '\u{670}' | '\u{6d6}'..='\u{6ed}'
            | '\u{1ab0}'..='\u{1aff}' | '\u{1dc0}'..='\u{1dff}' | '\u{20d0}'..='\u{20ff}'
    ) && !matches!(
        c,
        '\u{5be}'
            | '\u{5c0}'
            | '\u{5c3}'
            | '\u{5c6}'
            | '\u{6dd}'
            | '\u{6de}'
            | '\u{6e5}'
            | '\u{6e6}'
            | '\u{6e9}'
    )
}

/// Whether a character continues a word although it is not a letter.
pub(crate) fn continues(c: char) -> bool {
    !c.is_ascii() && (is_invisible(c) || is_combining_mark(c))
}

/// Whether a character forms one letter with the character before it: a mark of kana, or a part of
/// a Hangul syllable.
fn joins(c: char) -> bool {
    matches!(c, '\u{3099}' | '\u{309a}' | '\u{1161}'..='\u{11ff}')
}

/// Appends a character, folded, to a word that begins at `start`.
pub(crate) fn push(c: char, out: &mut String, start: usize) {
    match c {
        'A'..='Z' => out.push(c.to_ascii_lowercase()),
        // These letters are already folded: kana, ideographs, syllables of Hangul, Cyrillic.
        'a'..='z'
        | '0'..='9'
        | '\u{430}'..='\u{438}'
        | '\u{43a}'..='\u{44f}'
        | '\u{3041}'..='\u{3096}'
        | '\u{30a1}'..='\u{30fa}'
        | '\u{4e00}'..='\u{9fff}'
        | '\u{ac00}'..='\u{d7a3}' => out.push(c),
        _ if is_invisible(c) => {}
        _ => decompose_compatible(c, |part| {
            if is_diacritic(part) || is_invisible(part) {
                return;
            }
            if joins(part)
                && let Some(whole) =
                    out[start..].chars().next_back().and_then(|last| compose(last, part))
            {
                out.pop();
                out.push(whole);
                return;
            }
            for lower in part.to_lowercase() {
                if !is_diacritic(lower) {
                    push_plain(lower, out);
                }
            }
        }),
    }
}

/// Appends a lower-case letter. A letter that is missing on most keyboards is replaced by a common
/// letter.
fn push_plain(c: char, out: &mut String) {
    match c {
        'ß' => out.push_str("ss"),
        'æ' => out.push_str("ae"),
        'œ' => out.push_str("oe"),
        'ø' => out.push('o'),
        'đ' | 'ð' => out.push('d'),
        'ł' => out.push('l'),
        'ı' => out.push('i'),
        'ħ' => out.push('h'),
        'þ' => out.push_str("th"),
        'ς' => out.push('σ'),
        _ => out.push(c),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folded(text: &str) -> String {
        let mut out = String::new();
        text.chars().for_each(|c| push(c, &mut out, 0));
        out
    }

    #[test]
    fn spellings_of_the_same_word_are_folded_to_one() {
        for (one, other) in [
            ("Über", "u\u{308}ber"),
            ("GRÖSSER", "größer"),
            ("Señor", "senor"),
            ("Łódź", "lodz"),
            ("Ｆｕｌｌ", "full"),
            ("ﬁne", "fine"),
            ("ガ", "か\u{3099}".replace('か', "カ").as_str()),
            ("ｶﾞ", "ガ"),
            ("한국", "\u{1112}\u{1161}\u{11ab}\u{1100}\u{116e}\u{11a8}"),
            ("ΣΊΣΥΦΟΣ", "σίσυφος"),
            ("Ёлка", "елка"),
            ("שָׁלוֹם", "שלום"),
            ("مُحَمَّد", "محمد"),
            ("İstanbul", "istanbul"),
            ("كـتاب", "كتاب"),
        ] {
            assert_eq!(folded(one), folded(other), "{one} and {other}");
        }
    }

    #[test]
    fn marks_that_make_another_word_stay() {
        assert_ne!(folded("มา"), folded("มี"));
        assert_ne!(folded("か"), folded("が"));
        assert_ne!(folded("की"), folded("कु"));
    }
}
