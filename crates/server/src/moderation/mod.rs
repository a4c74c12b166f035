//! Bans and allows that are kept in the archive, and the audit log of all acts.
//!
//! The lists in files (`[policy]`) stay in force beside these entries. The entries are records of a
//! shelf without a door (`records`), so they are durable, copied and backed up like all records,
//! and every process of the archive learns of a new entry as it learns of any new record. A process
//! has all entries in memory (`book`), and answers questions about events and addresses from
//! immutable sets (`lists`) that are replaced as a whole.
//!
//! Read in this order: `subject`, `entry`, `records`, `terms`, `lists`, `book`, `state` (the
//! interface), `changes`, `checks` (the questions that the doors ask), `pages`, `values` (named
//! values beside the entries), `name_book` and `names` (the verified names of keys), `invites`,
//! `member_invites`, `opening`. `record_lines` has the lines of the records in exports.

mod address_terms;
mod book;
mod changes;
mod checks;
mod entry;
mod filter;
mod follower;
mod invites;
mod lists;
mod member_invites;
mod name_book;
mod names;
mod opening;
mod pages;
mod record_lines;
mod records;
mod requests;
mod state;
mod subject;
mod terms;
mod value_changes;
mod values;
mod word_terms;

pub(crate) use checks::{AddressRuling, RulingCheck};
pub use entry::{
    AuditAct, AuditNote, AuditPage, ChangedRuling, EntryFilter, EntryPage, RulingChange,
    RulingEntry,
};
pub(crate) use invites::JoinAnswer;
pub use invites::{INVITE_USES_MAX, Invite};
pub(crate) use name_book::{NAMES_MAX, VerifiedName};
pub use opening::ModerationService;
pub use records::{ENTRY_KIND, ModerationNetwork, NAME_KIND, RECORDS_MAX, VALUE_KIND};
pub use requests::{ModerationRequest, ModerationRequestError, SUBJECTS_MAX};
pub use state::{Moderation, ModerationError};
pub use subject::{Ruling, RulingSubject, SubjectError, SubjectSort};
pub use values::ValueFollower;

/// Whether the bans and allows of events concern the records of a network.
pub fn concern(network: &dyn hark_networks::Network) -> bool {
    network.name() == hark_networks::Network::name(&hark_networks::nostr::Nostr)
}

#[cfg(test)]
mod shared_tests;
#[cfg(test)]
mod tests;
