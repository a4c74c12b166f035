//! Reports (NIP-56) as a queue: the reported events and keys, each with the number of reporters and
//! the types of the reports.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::ControlFlow;

use hark_archive::{Id, Key, Query, SearchError, SearchProgress, Store};
use hark_codec::hex;
use hark_codec::nostr::{Event, EventArena};

/// The kind of a report.
pub const REPORT: u16 = 1984;

/// Maximum number of reports that are read, newest first.
const REPORTS_MAX: usize = 20_000;
/// Maximum number of events and keys in one report that are counted. NIP-56 needs one of each.
const SUBJECTS_OF_REPORT_MAX: usize = 8;
/// Maximum number of subjects in a queue.
const SUBJECTS_MAX: usize = 10_000;
/// Maximum length of the comment that is shown, in characters.
const COMMENT_CHARS_MAX: usize = 200;
/// The types that NIP-56 names. Any other type counts as `other`.
const TYPES: [&str; 7] =
    ["nudity", "malware", "profanity", "illegal", "spam", "impersonation", "other"];
/// Number of ids that are looked up at once.
const IDS_AT_ONCE: usize = 500;

/// The subject of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ReportedSubject {
    /// An event, by its id.
    Event(Id),
    /// A key.
    Key(Key),
}

/// A subject with all its reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReportedItem {
    /// The event or key.
    pub subject: ReportedSubject,
    /// Number of reports.
    pub reports: u64,
    /// The keys that have reported the subject.
    pub reporters: BTreeSet<Key>,
    /// Number of reports of each type.
    pub types: BTreeMap<&'static str, u64>,
    /// The time of the newest report, in seconds since 1970.
    pub latest_s: u64,
    /// The comment of the newest report that has a comment, cut to 200 characters.
    pub comment: String,
    /// For an event: its author, if the event is stored here.
    pub author: Option<Key>,
}

impl ReportedItem {
    /// The types and the comment in one line.
    pub fn reason(&self) -> String {
        let types = self.types.iter().map(|(name, count)| match count {
            1 => (*name).to_owned(),
            count => format!("{name} ({count})"),
        });
        let types = types.collect::<Vec<_>>().join(", ");
        if self.comment.is_empty() { types } else { format!("{types}: {}", self.comment) }
    }
}

/// The reported events and keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReportQueue {
    /// The subjects, the most recently reported first.
    pub items: Vec<ReportedItem>,
    /// Whether there are older reports, which were not read.
    pub is_cut: bool,
}

/// Selects the subjects and reports of a queue.
pub struct ReportChoice<'a> {
    /// Whether a subject is undecided. All others are left out.
    pub is_open: &'a dyn Fn(&ReportedSubject) -> bool,
    /// Whether the reports of a key count.
    pub is_heard: &'a dyn Fn(&Key) -> bool,
    /// Whether events that are not stored here are listed as well.
    pub with_absent: bool,
    /// The current time, in seconds since 1970.
    pub now_s: u64,
}

impl ReportQueue {
    /// Reads the queue from a store. At most 20,000 reports are read, newest first.
    pub fn read(store: &dyn Store, choice: &ReportChoice<'_>) -> Result<Self, SearchError> {
        let mut gathered = GatheredReports::default();
        let query = Query {
            kinds: Some(vec![u32::from(REPORT)]),
            limit: REPORTS_MAX + 1,
            now: choice.now_s,
            ..Query::default()
        };
        let mut search = store.search(&query)?;
        let mut arena = EventArena::new();
        let (mut read, mut is_cut) = (0, false);
        while search.slice(u64::MAX, &mut |record| {
            read += 1;
            is_cut |= read > REPORTS_MAX;
            if !is_cut && let Ok(event) = Event::parse(record.wire(), &mut arena) {
                is_cut |= !gathered.add(&event, choice);
            }
            if is_cut { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })? == SearchProgress::Paused
            && !is_cut
        {}
        let mut items = gathered.items;
        find_authors(store, &mut items, choice.now_s)?;
        let is_shown = |item: &ReportedItem| {
            let is_key = matches!(item.subject, ReportedSubject::Key(_));
            choice.with_absent || is_key || item.author.is_some()
        };
        items.retain(is_shown);
        Ok(Self { items, is_cut })
    }
}

/// The subjects of the reports that were read, in the order of their newest reports.
#[derive(Default)]
struct GatheredReports {
    items: Vec<ReportedItem>,
    at: HashMap<ReportedSubject, usize>,
}

impl GatheredReports {
    /// Adds a report. Reports must come newest first. Returns whether there was room for all its
    /// subjects.
    fn add(&mut self, event: &Event<'_>, choice: &ReportChoice<'_>) -> bool {
        if !(choice.is_heard)(event.pubkey()) {
            return true;
        }
        let subjects = subjects(event);
        for (subject, kind) in subjects.iter().take(SUBJECTS_OF_REPORT_MAX) {
            if !self.at.contains_key(subject) {
                if !(choice.is_open)(subject) {
                    continue;
                }
                if self.items.len() >= SUBJECTS_MAX {
                    return false;
                }
                self.at.insert(*subject, self.items.len());
                self.items.push(ReportedItem {
                    subject: *subject,
                    reports: 0,
                    reporters: BTreeSet::new(),
                    types: BTreeMap::new(),
                    latest_s: event.created_at(),
                    comment: String::new(),
                    author: None,
                });
            }
            let item = &mut self.items[self.at[subject]];
            item.reports += 1;
            item.reporters.insert(*event.pubkey());
            *item.types.entry(kind).or_default() += 1;
            if item.comment.is_empty() {
                let is_shown = |letter: &char| !letter.is_control();
                let words = event.content().split_whitespace().collect::<Vec<_>>().join(" ");
                item.comment = words.chars().filter(is_shown).take(COMMENT_CHARS_MAX).collect();
            }
        }
        true
    }
}

/// The subjects of a report, each with the type of the report. If a report names an event, its `p`
/// tags name the author, and the author is not reported as such.
fn subjects(event: &Event<'_>) -> BTreeMap<ReportedSubject, &'static str> {
    let of = |name: &str, subject: fn([u8; 32]) -> ReportedSubject| {
        let tags = event.tags().filter(|tag| tag.name() == name);
        let named = tags.filter_map(|tag| {
            let bytes = hex::decode_32(tag.value()?.as_bytes())?;
            Some((subject(bytes), tag.get(2)))
        });
        named.collect::<Vec<_>>()
    };
    let events = of("e", ReportedSubject::Event);
    let tags = if events.is_empty() { of("p", ReportedSubject::Key) } else { events };
    // The type may stand in another tag, such as `x` or `p`.
    let any = event.tags().filter(|tag| ["e", "p", "x"].contains(&tag.name()));
    let any = any.filter_map(|tag| tag.get(2)).find_map(known);
    let kind = |text: Option<&str>| text.and_then(known).or(any).unwrap_or("other");
    tags.into_iter().map(|(subject, text)| (subject, kind(text))).collect()
}

fn known(text: &str) -> Option<&'static str> {
    TYPES.into_iter().find(|name| name.eq_ignore_ascii_case(text.trim()))
}

/// Finds the authors of the reported events that are stored.
fn find_authors(
    store: &dyn Store,
    items: &mut [ReportedItem],
    now_s: u64,
) -> Result<(), SearchError> {
    let ids = items.iter().filter_map(|item| match item.subject {
        ReportedSubject::Event(id) => Some(id),
        ReportedSubject::Key(_) => None,
    });
    let ids: Vec<Id> = ids.collect();
    let mut authors = HashMap::new();
    for ids in ids.chunks(IDS_AT_ONCE) {
        let query = Query { ids: Some(ids.to_vec()), now: now_s, ..Query::default() };
        let mut search = store.search(&query)?;
        search.read_all(&mut |record| {
            authors.extend(record.author().map(|author| (*record.id(), *author)));
        })?;
    }
    for item in items {
        if let ReportedSubject::Event(id) = item.subject {
            item.author = authors.get(&id).copied();
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use hark_codec::crypto::KeyPair;
    use hark_codec::nostr::EventDraft;

    use super::*;

    fn add(to: &mut GatheredReports, by: u8, created_at: u64, tags: &[&[&str]], content: &str) {
        let keys = KeyPair::from_secret([by; 32]).unwrap();
        let mut json = Vec::new();
        EventDraft { created_at, kind: REPORT, tags, content }.sign(&keys, &mut json);
        let mut arena = EventArena::new();
        let event = Event::parse(&json, &mut arena).unwrap();
        let choice = ReportChoice {
            is_open: &|subject| *subject != ReportedSubject::Event([0xdd; 32]),
            is_heard: &|key| key != KeyPair::from_secret([9; 32]).unwrap().public(),
            with_absent: true,
            now_s: 0,
        };
        assert!(to.add(&event, &choice));
    }

    #[test]
    fn reports_are_gathered_by_what_they_report() {
        let (event, key, decided) = ("ee".repeat(32), "cc".repeat(32), "dd".repeat(32));
        let mut gathered = GatheredReports::default();
        let of_event: &[&[&str]] = &[&["e", &event, "illegal"], &["p", &key]];
        add(&mut gathered, 1, 90, &[&["p", &key, "impersonation"]], "");
        add(&mut gathered, 1, 80, of_event, "He's insulting\nthe king!\u{1b}[2J");
        add(&mut gathered, 1, 70, of_event, "again");
        add(&mut gathered, 2, 60, &[&["x", "hash", "malware"], &["e", &event]], "");
        add(&mut gathered, 3, 50, &[&["e", &event, "bad taste"]], "");
        add(&mut gathered, 9, 40, of_event, "nobody listens to this key");
        add(&mut gathered, 3, 30, &[&["e", &decided, "spam"]], "");
        add(&mut gathered, 3, 20, &[&["e", "no id", "spam"], &["t", "spam"]], "");
        let [of_key, of_event] = &gathered.items[..] else { panic!("{:?}", gathered.items) };
        assert_eq!((of_key.subject, of_key.reports), (ReportedSubject::Key([0xcc; 32]), 1));
        assert_eq!((of_key.latest_s, of_key.reason()), (90, "impersonation".into()));
        assert_eq!(of_event.subject, ReportedSubject::Event([0xee; 32]));
        assert_eq!((of_event.reports, of_event.reporters.len(), of_event.latest_s), (4, 3, 80));
        let reason = "illegal (2), malware, other: He's insulting the king![2J";
        assert_eq!(of_event.reason(), reason);
    }

    #[test]
    fn a_report_with_many_subjects_counts_for_a_few() {
        let mut gathered = GatheredReports::default();
        let ids: Vec<String> =
            (0..200u8).map(|number| format!("{number:02x}").repeat(32)).collect();
        let tags: Vec<[&str; 3]> = ids.iter().map(|id| ["e", id.as_str(), "spam"]).collect();
        let tags: Vec<&[&str]> = tags.iter().map(|tag| &tag[..]).collect();
        add(&mut gathered, 1, 90, &tags, "");
        assert_eq!(gathered.items.len(), SUBJECTS_OF_REPORT_MAX);
    }
}
