//! The texts of an event that are searched (NIP-50).
//!
//! | of | as a title | as the body |
//! |---|---|---|
//! | a profile (kind 0) | `name`, `display_name` and `nip05` of the content | `about` |
//! | other kinds | tags `title`, `name` and `subject`; hashtags (`t`) | content; tags `summary`, `description` and `alt` |

use std::cell::RefCell;
use std::sync::Arc;

use hark_archive::{Record, TextSource};
use hark_codec::nostr::{Event, EventArena, profile};
use hark_words::Part;

/// Kinds that are searched by default: profiles, notes, threads, pictures, videos, files, polls,
/// comments, highlights, articles, live streams, classifieds, wiki pages, calendar events and
/// communities.
pub const KINDS: [u32; 18] = [
    0, 1, 11, 20, 21, 22, 1_063, 1_068, 1_111, 9_802, 30_023, 30_311, 30_402, 30_818, 31_922,
    31_923, 34_235, 34_550,
];

/// One week, in seconds. In search results, an event ranks as high as an event of the next higher
/// class that is one week older.
const CLASS_S: u64 = 7 * 86_400;
/// The version of the rules in this file. Like the version of [`hark_words`], it is part of the
/// fingerprint, so a change of the version causes all events to be indexed again.
const VERSION: u64 = 1;

/// Selects the kinds and texts that are searched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextChoice {
    /// Kinds of events.
    pub kinds: Vec<u32>,
    /// The texts of these events.
    pub parts: Vec<TextPart>,
}

/// A part of an event that may be searched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextPart {
    /// The content.
    Content,
    /// Titles, names, subjects and summaries.
    Titles,
    /// Hashtags.
    Hashtags,
    /// Profiles, if kind 0 is searched.
    Profiles,
}

impl TextPart {
    /// All parts.
    pub const ALL: [Self; 4] = [Self::Content, Self::Titles, Self::Hashtags, Self::Profiles];

    /// The name of the part in settings.
    pub fn name(self) -> &'static str {
        match self {
            Self::Content => "content",
            Self::Titles => "titles",
            Self::Hashtags => "hashtags",
            Self::Profiles => "profiles",
        }
    }
}

impl Default for TextChoice {
    fn default() -> Self {
        Self { kinds: KINDS.to_vec(), parts: TextPart::ALL.to_vec() }
    }
}

impl TextChoice {
    /// Makes the source of these texts. Events of `private` kinds, which only some readers may see,
    /// are not searched.
    pub fn source(mut self, private: &[u32]) -> Arc<dyn TextSource> {
        let profiles = self.parts.contains(&TextPart::Profiles);
        self.kinds.retain(|kind| !private.contains(kind) && (profiles || *kind != 0));
        self.kinds.sort_unstable();
        self.kinds.dedup();
        Arc::new(EventTexts(self))
    }
}

struct EventTexts(TextChoice);

thread_local! {
    static ARENA: RefCell<EventArena> = RefCell::default();
}

impl TextSource for EventTexts {
    fn texts(&self, record: &Record<'_>, each: &mut dyn FnMut(Part, &str)) {
        if !self.has_texts(record.kind()) {
            return;
        }
        ARENA.with_borrow_mut(|arena| {
            // Stored events are valid. Damage is detected earlier, when the record is read.
            if let Ok(event) = Event::parse(record.wire(), arena) {
                self.of_event(&event, each);
            }
        });
    }

    fn kinds(&self) -> &[u32] {
        &self.0.kinds
    }

    fn fingerprint(&self) -> u64 {
        let TextChoice { kinds, parts } = &self.0;
        let flag = |all: u64, part| all << 1 | u64::from(parts.contains(part));
        let flags = TextPart::ALL.iter().fold(1, flag);
        let numbers = [VERSION, hark_words::VERSION, flags]
            .into_iter()
            .chain(kinds.iter().map(|kind| u64::from(*kind)));
        numbers.fold(0xcbf2_9ce4_8422_2325, |all, number| {
            let mixed = (all ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            mixed ^ mixed >> 29
        })
    }

    fn class_time(&self) -> u64 {
        CLASS_S
    }
}

impl EventTexts {
    fn of_event(&self, event: &Event<'_>, each: &mut dyn FnMut(Part, &str)) {
        if event.kind() == 0 {
            return of_profile(event.content(), each);
        }
        let mut says_language = false;
        let has = |part| self.0.parts.contains(&part);
        let (titles, hashtags) = (has(TextPart::Titles), has(TextPart::Hashtags));
        // Titles come first, because only a bounded number of words of an event is read.
        for tag in event.tags() {
            let Some(value) = tag.value() else { continue };
            match tag.name() {
                "title" | "name" | "subject" if titles => each(Part::Title, value),
                "t" if hashtags => each(Part::Title, value),
                "L" => says_language |= value == "ISO-639-1",
                _ => {}
            }
        }
        for tag in event.tags() {
            let Some(value) = tag.value() else { continue };
            match tag.name() {
                "summary" | "description" | "alt" if titles => each(Part::Body, value),
                "l" if says_language && tag.get(2) == Some("ISO-639-1") => {
                    each(Part::Language, value);
                }
                _ => {}
            }
        }
        if has(TextPart::Content) {
            each(Part::Body, event.content());
        }
    }
}

fn of_profile(content: &str, each: &mut dyn FnMut(Part, &str)) {
    // Names come first, wherever they are in the profile, because only a bounded number of words of
    // an event is read.
    profile::strings(content, |name, value| {
        if matches!(name, "name" | "display_name" | "nip05") {
            each(Part::Title, value);
        }
    });
    profile::strings(content, |name, value| {
        if name == "about" {
            each(Part::Body, value);
        }
    });
}

#[cfg(test)]
mod tests {
    use hark_codec::nostr::EventEncoder;

    use super::*;

    fn record(kind: u32, tags: &str, content: &str) -> Vec<u8> {
        let content = serde_json::Value::from(content);
        let (id, sig) = ("0".repeat(64), "0".repeat(128));
        let json = format!(
            r#"{{"id":"{id}","pubkey":"{id}","created_at":1,"kind":{kind},"tags":{tags},"content":{content},"sig":"{sig}"}}"#
        );
        let (mut arena, mut out) = (EventArena::new(), Vec::new());
        let event = Event::parse(json.as_bytes(), &mut arena).unwrap();
        EventEncoder::default().encode(&event, &[], &mut out);
        out
    }

    fn texts(source: &dyn TextSource, record: &[u8]) -> Vec<(Part, String)> {
        let mut all = Vec::new();
        let record = Record::new(record).unwrap();
        source.texts(&record, &mut |part, text| all.push((part, text.to_owned())));
        all
    }

    #[test]
    fn the_texts_of_an_event_are_its_content_its_titles_and_its_hashtags() {
        let tags = r#"[["t","bitcoin"],["title","A \"title\""],["summary","Short"],["L","ISO-639-1"],["l","en","ISO-639-1"],["p","x"]]"#;
        let article = record(30_023, tags, "The body\nof it");
        let of = |part: Part, text: &str| (part, text.to_owned());
        let source = TextChoice::default().source(&[]);
        assert_eq!(
            texts(&*source, &article),
            [
                of(Part::Title, "bitcoin"),
                of(Part::Title, "A \"title\""),
                of(Part::Body, "Short"),
                of(Part::Language, "en"),
                of(Part::Body, "The body\nof it"),
            ]
        );
        let content = TextChoice { parts: vec![TextPart::Content], ..TextChoice::default() };
        assert_eq!(texts(&*content.source(&[]), &article).len(), 2);
    }

    #[test]
    fn a_profile_has_the_texts_of_its_fields() {
        let content = r#"{"about":"I \"am\" Bob","name":"bob","picture":"https://x","nip05":"bob@x.org","n":1}"#;
        let source = TextChoice::default().source(&[]);
        let all = texts(&*source, &record(0, "[]", content));
        assert_eq!(all.len(), 3);
        assert_eq!(all[2], (Part::Body, "I \"am\" Bob".into()), "names come first");
        assert_eq!(texts(&*source, &record(0, "[]", "no JSON")), []);
        let others = TextChoice { parts: vec![TextPart::Content], ..TextChoice::default() };
        assert_eq!(texts(&*others.source(&[]), &record(0, "[]", content)), []);
    }

    #[test]
    fn events_of_other_kinds_and_of_private_ones_have_no_texts() {
        let all = TextChoice { kinds: vec![1, 4, 7], ..TextChoice::default() };
        let source = all.clone().source(&[4]);
        assert_eq!(texts(&*source, &record(4, "[]", "secret")), []);
        assert_eq!(texts(&*source, &record(30_023, "[]", "other")), []);
        assert_eq!(texts(&*source, &record(7, "[]", "+")).len(), 1);
        assert_ne!(source.fingerprint(), all.source(&[]).fingerprint());
    }
}
