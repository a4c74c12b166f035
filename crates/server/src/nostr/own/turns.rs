//! The turns of the servers of an archive to publish a change of the list of members. Without turns,
//! two servers that find the same change in different seconds would both publish its notices.
//!
//! The server that first notes the id of the stored list in the archive has the turn to replace this
//! list. The note is the same from every server, so the archive gives the turn to exactly one
//! server. The others wait for the new list. If the list does not come, because the server with the
//! turn has ended, the next turn begins.

use parking_lot::Mutex;
use serde_json::json;

use crate::moderation::{Moderation, ModerationError};

/// The name of the note.
const VALUE: &str = "self/members";
/// Number of rounds that the others wait for the server that has the turn.
const ROUNDS_MAX: u64 = 10;
const NS_PER_S: u64 = 1_000_000_000;

/// The turns that one server knows.
#[derive(Default)]
pub(crate) struct ListTurns {
    list: Mutex<AwaitedList>,
}

/// A stored list that is to be replaced.
#[derive(Default)]
struct AwaitedList {
    id: String,
    /// Number of rounds that have waited for the next list.
    rounds: u64,
    /// Whether this server has the turn.
    is_ours: bool,
}

impl ListTurns {
    /// Takes the turn to replace the stored list with this id and time. Returns false if another
    /// server has the turn. This process must know all notes from before the list was stored.
    pub(super) fn take(
        &self,
        moderation: &Moderation,
        id: &str,
        created_at: u64,
    ) -> Result<bool, ModerationError> {
        let mut list = self.list.lock();
        if list.id != id {
            *list = AwaitedList { id: id.to_owned(), ..AwaitedList::default() };
        }
        if !list.is_ours {
            let turn = list.rounds / ROUNDS_MAX;
            list.is_ours = note(moderation, id, created_at, turn)?;
            list.rounds += u64::from(!list.is_ours);
        }
        Ok(list.is_ours)
    }
}

/// Notes a turn in the archive. Returns false if another server has noted this turn or a later turn.
fn note(
    moderation: &Moderation,
    id: &str,
    created_at: u64,
    turn: u64,
) -> Result<bool, ModerationError> {
    let noted = moderation.value(VALUE).unwrap_or_default();
    if noted["list"] == id && noted["turn"].as_u64().is_some_and(|noted| noted >= turn) {
        return Ok(false);
    }
    let least_ns = created_at.saturating_mul(NS_PER_S).saturating_add(turn);
    let at_ns = least_ns.max(moderation.value_ns(VALUE).saturating_add(1));
    moderation.claim(at_ns, VALUE.into(), json!({ "list": id, "turn": turn }))
}
