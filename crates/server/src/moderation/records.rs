//! The records of the shelf `moderation`: an entry for each subject and ruling, named values, the
//! verified names of keys, and the notes of the audit log. A newer entry replaces the earlier entry
//! of the same subject and ruling; an entry that was lifted is replaced by a record without an
//! entry, so that other processes learn that it was lifted.
//!
//! A record's message is a line of JSON, and its id is the hash of this line.

use hark_archive::effects::{Effects, Rules};
use hark_archive::{Id, LabelSet, Query, Record};
use hark_codec::crypto::sha256;
use hark_codec::hex;
use hark_codec::record::{Key, LabelPosition, RecordHeader, write};
use hark_networks::nostr::names::InternetName;
use hark_networks::object::read;
use hark_networks::{Filters, LineFormat, Network, RecordProperties};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::entry::{AuditNote, RulingEntry};
use super::subject::{Ruling, RulingSubject};

/// The kinds of the records.
pub const ENTRY_KIND: u32 = 1;
pub(super) const NOTE_KIND: u32 = 2;
/// The kind of a record with a named value.
pub const VALUE_KIND: u32 = 3;
/// The kind of a record with the verified name of a key.
pub const NAME_KIND: u32 = 4;
/// The label with the ruling and the subject of an entry.
const SUBJECT: u8 = b's';
/// Number of nanoseconds of a second, the unit of the records' times.
pub(super) const NS_PER_S: u64 = 1_000_000_000;
/// Time after which a note, and the record of a lifted entry, expire.
const NOTES_DAYS: u64 = 400;
/// Maximum number of records, above which the oldest notes are deleted.
pub const RECORDS_MAX: u64 = 2_000_000;

/// The bans, the allows and the audit log, as records of an archive.
#[derive(Clone, Copy, Debug)]
pub struct ModerationNetwork;

/// The message of a record.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub(super) enum RecordLine {
    /// An entry, or the end of an entry.
    Entry {
        at: u64,
        ruling: String,
        subject: String,
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        lifted: bool,
        #[serde(default)]
        reason: String,
        #[serde(default)]
        until: Option<u64>,
        #[serde(default)]
        by: String,
    },
    /// A note of the audit log.
    Act {
        at: u64,
        by: String,
        act: String,
        #[serde(default)]
        subject: String,
        #[serde(default)]
        before: Value,
        #[serde(default)]
        after: Value,
    },
    /// A named value, or its removal.
    Value {
        at: u64,
        name: String,
        #[serde(default)]
        value: Value,
        #[serde(default)]
        by: String,
    },
    /// The verified name of a key, or the end of its verification.
    Name {
        at: u64,
        key: String,
        #[serde(default)]
        name: Option<String>,
        /// The time at which the verification ends, in seconds since 1970.
        until: u64,
    },
}

/// The content of one record: a named value from a time on.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct NamedValue {
    pub(super) at_ns: u64,
    pub(super) name: String,
    /// `null` if the value was removed.
    pub(super) value: Value,
    pub(super) by: String,
}

impl NamedValue {
    /// Encodes the record.
    pub(super) fn record(self) -> Box<[u8]> {
        let Self { at_ns, name, value, by } = self;
        encode(&RecordLine::Value { at: at_ns, name, value, by })
    }

    /// Decodes a record. Returns `None` for a record of another kind.
    pub(super) fn of(record: &Record<'_>) -> Option<Self> {
        if record.kind() != VALUE_KIND {
            return None;
        }
        match read(record.wire()).ok()? {
            RecordLine::Value { at, name, value, by } => Some(Self { at_ns: at, name, value, by }),
            _ => None,
        }
    }
}

/// The content of one record: the name of a key from a time on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NameState {
    pub(super) at_ns: u64,
    pub(super) key: Key,
    /// `None` if the verification has ended.
    pub(super) name: Option<InternetName>,
    /// The time at which the record expires, in seconds since 1970.
    pub(super) until_s: u64,
}

impl NameState {
    /// Encodes the record.
    pub(super) fn record(&self) -> Box<[u8]> {
        let Self { at_ns, key, name, until_s } = self;
        let name = name.as_ref().map(InternetName::to_string);
        encode(&RecordLine::Name { at: *at_ns, key: hex::text_32(key), name, until: *until_s })
    }

    /// Decodes a record. Returns `None` for a record of another kind.
    pub(super) fn of(record: &Record<'_>) -> Option<Self> {
        if record.kind() != NAME_KIND {
            return None;
        }
        let RecordLine::Name { at, key, name, until } = read(record.wire()).ok()? else {
            return None;
        };
        let key = hex::decode_32(key.as_bytes())?;
        let name = name.map(|name| name.parse()).transpose().ok()?;
        Some(Self { at_ns: at, key, name, until_s: until })
    }
}

/// The content of one record: the state of a subject from a time on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RulingState {
    pub(super) at_ns: u64,
    pub(super) ruling: Ruling,
    pub(super) subject: RulingSubject,
    /// `None` if the entry was lifted.
    pub(super) entry: Option<RulingEntry>,
}

impl RulingState {
    /// Encodes the record.
    pub(super) fn record(&self) -> Box<[u8]> {
        let entry = self.entry.as_ref();
        let text = |of: fn(&RulingEntry) -> &str| entry.map(of).unwrap_or_default().to_owned();
        encode(&RecordLine::Entry {
            at: self.at_ns,
            ruling: self.ruling.name().into(),
            subject: self.subject.to_string(),
            lifted: entry.is_none(),
            reason: text(|entry| &entry.reason),
            until: entry.and_then(|entry| entry.until_s),
            by: text(|entry| &entry.by),
        })
    }

    /// Decodes a record. Returns `None` for a note.
    pub(super) fn of(record: &Record<'_>) -> Option<Self> {
        if record.kind() != ENTRY_KIND {
            return None;
        }
        let RecordLine::Entry { at, ruling, subject, lifted, reason, until, by } =
            read(record.wire()).ok()?
        else {
            return None;
        };
        let (ruling, subject) =
            (Ruling::from_name(&ruling)?, subject.parse::<RulingSubject>().ok()?);
        let entry = (!lifted).then(|| RulingEntry {
            subject: subject.clone(),
            ruling,
            reason: reason.into(),
            since_s: at / NS_PER_S,
            until_s: until,
            by: by.into(),
        });
        Some(Self { at_ns: at, ruling, subject, entry })
    }
}

/// Encodes a note.
pub(super) fn note_record(note: &AuditNote) -> Box<[u8]> {
    let AuditNote { at_ns, by, act, subject, before, after } = note.clone();
    encode(&RecordLine::Act { at: at_ns, by, act, subject, before, after })
}

/// Decodes a note. Returns `None` for an entry.
pub(super) fn note_of(record: &Record<'_>) -> Option<AuditNote> {
    match read(record.wire()).ok()? {
        RecordLine::Act { at, by, act, subject, before, after } => {
            Some(AuditNote { at_ns: at, by, act, subject, before, after })
        }
        _ => None,
    }
}

/// Returns the query for the newest record of a subject and ruling.
pub(super) fn slot(ruling: Ruling, subject: &RulingSubject) -> Query {
    of_label(label(ruling.name(), &subject.to_string()).as_bytes())
}

/// Returns the query for all notes, newest first.
pub(super) fn notes() -> Query {
    Query { kinds: Some(vec![NOTE_KIND]), ..Query::default() }
}

/// Returns the query for all entries.
pub(super) fn entries() -> Query {
    Query { kinds: Some(vec![ENTRY_KIND]), ..Query::default() }
}

/// Returns the query for all values.
pub(super) fn values() -> Query {
    Query { kinds: Some(vec![VALUE_KIND]), ..Query::default() }
}

/// Returns the query for all verified names.
pub(super) fn names() -> Query {
    Query { kinds: Some(vec![NAME_KIND]), ..Query::default() }
}

/// Returns the query for the newest records of these values.
pub(super) fn value_slots<'n>(names: impl Iterator<Item = &'n str>) -> Query {
    let labels = names.map(|name| value_label(name).into_bytes().into()).collect();
    Query { labels: vec![LabelSet { name: SUBJECT, values: labels }], ..values() }
}

fn value_label(name: &str) -> String {
    format!("value {name}")
}

fn name_label(key: &str) -> String {
    format!("name {key}")
}

fn label(ruling: &str, subject: &str) -> String {
    format!("{ruling} {subject}")
}

/// Returns the query for the newest record with a label: of an entry, of a value or of a name.
fn of_label(label: &[u8]) -> Query {
    let labels = vec![LabelSet::one(SUBJECT, label)];
    Query { kinds: Some(vec![ENTRY_KIND, VALUE_KIND, NAME_KIND]), labels, ..Query::default() }
}

/// Encodes a line as a record.
fn encode(line: &RecordLine) -> Box<[u8]> {
    // Cannot fail: every value of a line can be written as JSON.
    let wire = serde_json::to_vec(line).unwrap_or_default();
    let mut record = Vec::new();
    encode_wire(line, &wire, &mut record);
    record.into()
}

/// Appends the record of a line to `record`, and returns the record's id.
pub(super) fn encode_wire(line: &RecordLine, wire: &[u8], record: &mut Vec<u8>) -> Id {
    let id = sha256(wire);
    let after_days = |at: u64| Some(at.saturating_add(NOTES_DAYS * 86_400 * NS_PER_S));
    let (time, kind, expires, label) = match line {
        RecordLine::Entry { at, ruling, subject, lifted, until, .. } => {
            let until = until.map(|until_s| until_s.saturating_mul(NS_PER_S));
            let expires = if *lifted { after_days(*at) } else { until };
            (*at, ENTRY_KIND, expires, Some(label(ruling, subject)))
        }
        RecordLine::Act { at, .. } => (*at, NOTE_KIND, after_days(*at), None),
        RecordLine::Value { at, name, value, .. } => {
            let expires = if value.is_null() { after_days(*at) } else { None };
            (*at, VALUE_KIND, expires, Some(value_label(name)))
        }
        RecordLine::Name { at, key, until, .. } => {
            (*at, NAME_KIND, Some(until.saturating_mul(NS_PER_S)), Some(name_label(key)))
        }
    };
    let head = RecordHeader { id, time, author: None, kind, expires };
    let labels = label.iter().map(|label| (SUBJECT, LabelPosition::Bytes(label.as_bytes())));
    write(record, &head, wire, labels);
    id
}

impl Network for ModerationNetwork {
    fn name(&self) -> &'static str {
        "moderation"
    }

    fn records(&self) -> &'static str {
        "rulings"
    }

    fn nature(&self) -> RecordProperties {
        RecordProperties { units_per_s: NS_PER_S, ..RecordProperties::default() }
    }

    fn rules(&self) -> Box<dyn Rules> {
        Box::new(Self)
    }

    fn lines(&self) -> &dyn LineFormat {
        self
    }

    fn filters(&self) -> &dyn Filters {
        self
    }
}

impl Rules for ModerationNetwork {
    fn effects(&self, record: &Record<'_>, effects: &mut Effects) {
        let mut labels = record.labels().filter(|_| record.kind() != NOTE_KIND);
        effects.slot = labels.find(|(name, _)| *name == SUBJECT).map(|(_, label)| of_label(label));
    }
}

#[cfg(test)]
mod tests {
    use hark_networks::{LineFault, ReadOptions};

    use super::*;

    fn state(text: &str, at_ns: u64, until_s: Option<u64>) -> RulingState {
        let (subject, ruling): (RulingSubject, _) = (text.parse().unwrap(), Ruling::Ban);
        let entry = RulingEntry {
            subject: subject.clone(),
            ruling,
            reason: "\"spam\"\n".into(),
            since_s: at_ns / NS_PER_S,
            until_s,
            by: "hark ban".into(),
        };
        RulingState { at_ns, ruling, subject, entry: Some(entry) }
    }

    #[test]
    fn records_come_back_and_are_read_from_their_lines() {
        let mut lifted = state("kind:7", 5, None);
        lifted.entry = None;
        let note = AuditNote {
            at_ns: 7,
            by: "me".into(),
            act: "ban".into(),
            subject: "kind:7".into(),
            before: Value::Null,
            after: serde_json::json!({ "reason": "x" }),
        };
        let states =
            [state("word:a b", 3 * NS_PER_S, Some(9)), state("192.0.2.0/24", 4, None), lifted];
        for state in &states {
            assert_eq!(
                RulingState::of(&Record::new(&state.record()).unwrap()).as_ref(),
                Some(state)
            );
        }
        let named = |name: Option<&str>| NameState {
            at_ns: 9,
            key: [7; 32],
            name: name.map(|name| name.parse().unwrap()),
            until_s: 4_000_000_000,
        };
        let names = [named(Some("bob@example.com")), named(None)];
        for name in &names {
            let record = name.record();
            let record = Record::new(&record).unwrap();
            assert_eq!(NameState::of(&record).as_ref(), Some(name));
            assert_eq!((RulingState::of(&record), NamedValue::of(&record)), (None, None));
        }
        let note_bytes = note_record(&note);
        assert_eq!(note_of(&Record::new(&note_bytes).unwrap()), Some(note));
        let mut check = ModerationNetwork.record_check();
        let name_bytes = names.iter().map(NameState::record);
        for bytes in states.iter().map(RulingState::record).chain([note_bytes]).chain(name_bytes) {
            let record = Record::new(&bytes).unwrap();
            assert_eq!(check(&record), Ok(()));
            let (mut line, mut again) = (Vec::new(), Vec::new());
            ModerationNetwork.lines().write(&record, &mut line);
            let mut reader = ModerationNetwork.reader(&ReadOptions::default());
            reader.read(&line, &|_| false, &mut again).unwrap();
            assert_eq!(again[..], bytes[..]);
            assert_eq!(reader.read(&line, &|_| true, &mut again), Err(LineFault::Kept));
        }
        let mut reader =
            ModerationNetwork.reader(&ReadOptions { now_s: 9, ..ReadOptions::default() });
        let mut record = Vec::new();
        let line = Record::new(&states[0].record()).unwrap().wire().to_owned();
        assert_eq!(reader.read(&line, &|_| false, &mut record), Err(LineFault::Expired));
        let key = "07".repeat(32);
        for line in [
            "{}",
            "[]",
            r#"{"type":"entry","at":1,"ruling":"ban","subject":"kind:007"}"#,
            r#"{"type":"name","at":1,"key":"07","name":"a@b.example","until":4000000000}"#,
            &format!(r#"{{"type":"name","at":1,"key":"{key}","name":"A@b.c","until":4000000000}}"#),
        ] {
            assert!(reader.read(line.as_bytes(), &|_| false, &mut record).is_err(), "{line}");
        }
        for filter in ["entries", "values", "names", "log", "*"] {
            let query = ModerationNetwork.query(filter, &mut |_| None).unwrap().unwrap();
            assert_eq!(ModerationNetwork.text(&query), filter);
        }
    }
}
