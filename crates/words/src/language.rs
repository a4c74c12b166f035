//! Decides whether a record that declares no language matches `language:`. The record matches if it
//! contains a script in which the language is written; for Chinese, it must also contain no kana.
//! So languages with the same script are not distinguished.

/// A set of scripts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Scripts(u16);

const LATIN: u16 = 1;
const CYRILLIC: u16 = 1 << 1;
const GREEK: u16 = 1 << 2;
const HEBREW: u16 = 1 << 3;
const ARABIC: u16 = 1 << 4;
const DEVANAGARI: u16 = 1 << 5;
const THAI: u16 = 1 << 6;
const HAN: u16 = 1 << 7;
const KANA: u16 = 1 << 8;
const HANGUL: u16 = 1 << 9;
const OTHER: u16 = 1 << 10;

impl Scripts {
    /// Adds the script of a word's first character.
    pub(crate) fn add(&mut self, word: &str) {
        let script = match word.chars().next() {
            Some('a'..='z') => LATIN,
            None | Some('0'..='9') => 0,
            Some(c) => match u32::from(c) {
                0xc0..=0x24f | 0x1e00..=0x1eff => LATIN,
                0x370..=0x3ff => GREEK,
                0x400..=0x52f => CYRILLIC,
                0x590..=0x5ff => HEBREW,
                0x600..=0x77f => ARABIC,
                0x900..=0x97f => DEVANAGARI,
                0xe00..=0xe7f => THAI,
                0x3041..=0x30ff => KANA,
                0x3400..=0x9fff | 0x20000..=0x323af => HAN,
                0xac00..=0xd7a3 => HANGUL,
                // Emoji belong to no script.
                0x2190..=0x2bff | 0x1f000..=0x1faff => 0,
                _ => OTHER,
            },
        };
        self.0 |= script;
    }

    /// Whether a text in these scripts may be in a language, given by its code of ISO 639-1.
    pub(crate) fn may_be(self, language: &str) -> bool {
        let has = |script: u16| self.0 & script != 0;
        match language {
            "ja" => has(KANA),
            "zh" => has(HAN) && !has(KANA),
            "ko" => has(HANGUL),
            "th" => has(THAI),
            "he" | "yi" => has(HEBREW),
            "ar" | "fa" | "ur" | "ps" | "ug" => has(ARABIC),
            "hi" | "mr" | "ne" | "sa" => has(DEVANAGARI),
            "el" => has(GREEK),
            "ru" | "uk" | "bg" | "be" | "mk" | "kk" | "ky" | "mn" | "tg" => has(CYRILLIC),
            // These languages are written in two scripts.
            "sr" | "uz" => has(CYRILLIC | LATIN),
            "am" | "bn" | "bo" | "gu" | "hy" | "ka" | "km" | "kn" | "lo" | "ml" | "my" | "or"
            | "pa" | "si" | "ta" | "te" => has(OTHER),
            _ => has(LATIN),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_may_be_in_the_languages_of_its_script() {
        let scripts = |words: &[&str]| {
            let mut scripts = Scripts::default();
            for word in words {
                scripts.add(word);
            }
            scripts
        };
        let fits = |words: &[&str], language: &str| scripts(words).may_be(language);
        assert!(fits(&["good", "🚀"], "en") && fits(&["gut"], "de") && !fits(&["good"], "ja"));
        assert!(fits(&["今日", "は"], "ja") && !fits(&["今日", "は"], "zh"));
        assert!(fits(&["天气"], "zh") && !fits(&["天气"], "ja"));
        assert!(fits(&["привет"], "ru") && !fits(&["привет"], "en"));
        assert!(!fits(&["🚀", "2026"], "en"));
    }
}
