//! Entries of the lists, changes of entries, and the notes of the audit log.

use std::sync::Arc;

use serde_json::{Value, json};

use super::subject::{Ruling, RulingSubject, SubjectSort};

/// A ban or an allow in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RulingEntry {
    /// The subject.
    pub subject: RulingSubject,
    /// Whether the subject is banned or allowed.
    pub ruling: Ruling,
    /// The reason, which refusals of the subject repeat. May be empty.
    pub reason: Arc<str>,
    /// When the entry was made, in seconds since 1970.
    pub since_s: u64,
    /// When the entry ends, in seconds since 1970. `None`: never.
    pub until_s: Option<u64>,
    /// The maker of the entry.
    pub by: Arc<str>,
}

impl RulingEntry {
    /// Whether the entry is in force at this time.
    pub fn is_in_force(&self, now_s: u64) -> bool {
        self.until_s.is_none_or(|until_s| now_s < until_s)
    }

    /// The entry as a row of a list, for programs.
    pub fn row(&self) -> Value {
        let Self { subject, ruling, reason, since_s, until_s, by } = self;
        json!({
            "ruling": ruling.name(),
            "sort": subject.sort().name(),
            "subject": subject.shown(),
            "reason": &**reason,
            "since": since_s,
            "until": until_s,
            "by": &**by,
        })
    }

    /// The fields that a change of the entry can change, for the audit log.
    pub(super) fn state(&self) -> Value {
        json!({ "reason": &*self.reason, "until": self.until_s, "by": &*self.by })
    }

    /// Whether the entry already has this reason and this end, so that setting them has no effect.
    pub(super) fn has_effect_of(&self, reason: &str, until_s: Option<u64>) -> bool {
        *self.reason == *reason && self.until_s == until_s
    }
}

/// A change of the lists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RulingChange {
    /// Makes an entry, or replaces the entry with the same subject and ruling.
    Set {
        /// The subject.
        subject: RulingSubject,
        /// Whether the subject is banned or allowed.
        ruling: Ruling,
        /// The reason. May be empty.
        reason: String,
        /// When the entry ends, in seconds since 1970. `None`: never.
        until_s: Option<u64>,
    },
    /// Removes the entry with this subject and ruling.
    Lift(RulingSubject, Ruling),
}

impl RulingChange {
    /// The subject of the change.
    pub fn subject(&self) -> &RulingSubject {
        match self {
            Self::Set { subject, .. } | Self::Lift(subject, _) => subject,
        }
    }

    /// The ruling that the change makes or lifts.
    pub fn ruling(&self) -> Ruling {
        match self {
            Self::Set { ruling, .. } | Self::Lift(_, ruling) => *ruling,
        }
    }

    /// The name of the act in the audit log.
    pub(super) fn act(&self) -> &'static str {
        match self {
            Self::Set { ruling, .. } => ruling.name(),
            Self::Lift(_, ruling) => ruling.lifting_name(),
        }
    }
}

/// The effect of a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangedRuling {
    /// The subject.
    pub subject: RulingSubject,
    /// The ruling that was made or lifted.
    pub ruling: Ruling,
    /// The entry before the change.
    pub before: Option<RulingEntry>,
    /// The entry after the change. `None` if the entry was lifted.
    pub after: Option<RulingEntry>,
}

impl ChangedRuling {
    /// Whether the change had an effect.
    pub fn is_change(&self) -> bool {
        self.before != self.after
    }
}

/// A note of the audit log: an act of a person, a command or a management call.
#[derive(Clone, Debug, PartialEq)]
pub struct AuditNote {
    /// When, in nanoseconds since 1970.
    pub at_ns: u64,
    /// Who: a key (`npub1…`), or a command and its user.
    pub by: String,
    /// What: `ban`, `unban`, `allow`, `unallow`, or the name of another act.
    pub act: String,
    /// The subject of the act, in its unambiguous form. May be empty.
    pub subject: String,
    /// The state before. `null` if there was none.
    pub before: Value,
    /// The state after. `null` if there is none.
    pub after: Value,
}

impl AuditNote {
    /// The note as a row of the log, for programs.
    pub fn row(&self) -> Value {
        json!({
            "at": self.at_ns / 1_000_000_000,
            "by": self.by,
            "act": self.act,
            "subject": self.subject,
            "before": self.before,
            "after": self.after,
        })
    }
}

/// An act that changes no entry, to be written into the audit log.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AuditAct {
    /// The name of the act, such as `changerelayname`.
    pub act: String,
    /// The subject of the act. May be empty.
    pub subject: String,
    /// The state before.
    pub before: Value,
    /// The state after.
    pub after: Value,
}

/// The entries that a list shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EntryFilter {
    /// Only bans, or only allows.
    pub ruling: Option<Ruling>,
    /// Only subjects of this sort.
    pub sort: Option<SubjectSort>,
}

impl EntryFilter {
    pub(super) fn matches(self, (ruling, subject): (Ruling, &RulingSubject)) -> bool {
        self.ruling.is_none_or(|wanted| wanted == ruling)
            && self.sort.is_none_or(|wanted| wanted == subject.sort())
    }
}

/// A page of the entries in force.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EntryPage {
    /// The entries, in the order of ruling and subject.
    pub entries: Vec<RulingEntry>,
    /// The cursor of the next page. `None` after the last page.
    pub next: Option<String>,
}

/// A page of the audit log, newest first.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AuditPage {
    /// The notes.
    pub notes: Vec<AuditNote>,
    /// The cursor of the next page. `None` after the last page.
    pub next: Option<String>,
}
