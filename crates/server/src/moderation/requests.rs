//! Requests of commands about bans and allows, as JSON. A running server answers the requests on
//! its control socket. Without a server, the command answers its own requests, with the archive
//! that it has opened.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::entry::{AuditAct, ChangedRuling, EntryFilter, RulingChange, RulingEntry};
use super::invites::Invite;
use super::state::{Moderation, ModerationError};
use super::subject::{Ruling, RulingSubject, SubjectError, SubjectSort};

/// Maximum number of subjects of one request. The answer to as many subjects with the longest
/// reasons fits into a frame of the control socket.
pub const SUBJECTS_MAX: usize = 1_000;
/// Maximum number of rows of a page. A page has fewer rows if they are long, so the size of an
/// answer is bounded.
const ROWS_MAX: usize = 200;

/// A request.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "lowercase")]
pub enum ModerationRequest {
    /// Make or lift entries.
    Change {
        /// The name of the act: `ban`, `unban`, `allow` or `unallow`.
        act: String,
        /// The subjects, in any form that is recognised.
        subjects: Vec<String>,
        /// The reason of new entries.
        #[serde(default)]
        reason: String,
        /// The end of new entries, in seconds since 1970.
        #[serde(default)]
        until: Option<u64>,
        /// The actor, for the audit log.
        by: String,
    },
    /// Write a note of an act that changes no entry.
    Note {
        /// The name of the act.
        act: String,
        /// The subject of the act.
        subject: String,
        /// The state after the act.
        after: Value,
        /// The actor, for the audit log.
        by: String,
    },
    /// Make an invite.
    Invite {
        /// Number of keys that may join. `None`: any number.
        #[serde(default)]
        uses: Option<u32>,
        /// The end of the invite, in seconds since 1970.
        #[serde(default)]
        until: Option<u64>,
        /// The actor, for the audit log.
        by: String,
    },
    /// A page of the invites.
    Invites {
        /// The cursor of the page before.
        #[serde(default)]
        after: Option<String>,
    },
    /// Revoke an invite.
    Uninvite {
        /// The code of the invite.
        code: String,
        /// The actor, for the audit log.
        by: String,
    },
    /// A page of the entries in force.
    Entries {
        /// Only entries with this ruling.
        #[serde(default)]
        ruling: Option<String>,
        /// Only subjects of this sort.
        #[serde(default)]
        sort: Option<String>,
        /// The cursor of the page before.
        #[serde(default)]
        after: Option<String>,
    },
    /// A page of the audit log, newest first.
    Log {
        /// Only notes from this time on, in seconds since 1970.
        #[serde(default)]
        since: u64,
        /// The cursor of the page before.
        #[serde(default)]
        after: Option<String>,
    },
}

/// Why a request was not answered.
#[derive(Debug, thiserror::Error)]
pub enum ModerationRequestError {
    /// The request cannot be read.
    #[error("a request about bans cannot be read: {0}")]
    Form(#[from] serde_json::Error),
    /// A text names no subject.
    #[error(transparent)]
    Subject(#[from] SubjectError),
    /// A name is not known.
    #[error("{0:?} is no ruling, act or sort")]
    Name(String),
    /// The change was not made, or the page was not read.
    #[error(transparent)]
    Moderation(#[from] ModerationError),
}

impl Moderation {
    /// Answers a request. The call waits for the archive, so the caller's thread must be allowed to
    /// block.
    pub fn answer(&self, request: &[u8]) -> Result<Value, ModerationRequestError> {
        match serde_json::from_slice(request)? {
            ModerationRequest::Change { act, subjects, reason, until, by } => {
                let lifts = |ruling: &Ruling| ruling.lifting_name() == act;
                let lifted = Ruling::ALL.into_iter().find(lifts);
                let ruling = Ruling::from_name(&act).or(lifted);
                let ruling = ruling.ok_or(ModerationRequestError::Name(act))?;
                // A reason is shown on terminals and in single lines.
                let reason = reason.replace(char::is_control, " ");
                let change = |subject: RulingSubject| match lifted {
                    Some(ruling) => RulingChange::Lift(subject, ruling),
                    None => RulingChange::Set {
                        subject,
                        ruling,
                        reason: reason.clone(),
                        until_s: until,
                    },
                };
                let changes = subjects.iter().map(|text| text.parse().map(change));
                let changes = changes.collect::<Result<Vec<_>, _>>()?;
                let changed = self.change_now(&changes, &by)?;
                Ok(json!({ "changed": changed.iter().map(changed_row).collect::<Vec<_>>() }))
            }
            ModerationRequest::Note { act, subject, after, by } => {
                self.note_now(AuditAct { act, subject, before: Value::Null, after }, &by)?;
                Ok(Value::Null)
            }
            ModerationRequest::Invite { uses, until, by } => {
                Ok(self.make_invite(uses, until, &by)?.row())
            }
            ModerationRequest::Invites { after } => {
                let after = after.unwrap_or_default();
                let invites = self.invites();
                let mut rest = invites.iter().filter(|invite| invite.code > after);
                let page: Vec<&Invite> = rest.by_ref().take(ROWS_MAX).collect();
                let last = page.last().map(|invite| invite.code.clone());
                let next = last.filter(|_| rest.next().is_some());
                let rows: Vec<Value> = page.iter().map(|invite| invite.row()).collect();
                Ok(json!({ "rows": rows, "next": next }))
            }
            ModerationRequest::Uninvite { code, by } => {
                Ok(json!({ "revoked": self.revoke_invite(&code, &by)? }))
            }
            ModerationRequest::Entries { ruling, sort, after } => {
                let ruling = ruling
                    .map(|name| Ruling::from_name(&name).ok_or(ModerationRequestError::Name(name)));
                let sort = sort.map(|name| {
                    SubjectSort::from_name(&name).ok_or(ModerationRequestError::Name(name))
                });
                let filter = EntryFilter { ruling: ruling.transpose()?, sort: sort.transpose()? };
                let page = self.entries(filter, after.as_deref(), ROWS_MAX)?;
                let rows: Vec<Value> = page.entries.iter().map(RulingEntry::row).collect();
                Ok(json!({ "rows": rows, "next": page.next }))
            }
            ModerationRequest::Log { since, after } => {
                let page = self.log(since, after.as_deref(), ROWS_MAX / 2)?;
                let rows: Vec<Value> = page.notes.iter().map(super::AuditNote::row).collect();
                Ok(json!({ "rows": rows, "next": page.next }))
            }
        }
    }
}

fn changed_row(changed: &ChangedRuling) -> Value {
    let state =
        |entry: &Option<RulingEntry>| entry.as_ref().map_or(Value::Null, RulingEntry::state);
    json!({
        "subject": changed.subject.shown(),
        "sort": changed.subject.sort().name(),
        "ruling": changed.ruling.name(),
        "changed": changed.is_change(),
        "before": state(&changed.before),
        "after": state(&changed.after),
    })
}
