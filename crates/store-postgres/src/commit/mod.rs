//! Commits a batch in one transaction. The whole database commits one batch at a time.
//!
//! 1. One round trip begins the transaction, locks the shelf's row in `state`, and fetches every
//!    stored record that the rules of this batch may affect.
//! 2. The rules are applied here, in order, to the fetched records and the batch's own records
//!    ([`play`]).
//! 3. The resulting deletions and insertions are executed, counted and made durable.
//!
//! So the numbers of puts follow the order of commits without gaps, and rules hold when several
//! nodes write.

pub(crate) use batch::{CommitAttempt, PreparedPut, ShelfAdvance};
pub(crate) use committer::CommitterState;

mod batch;
mod committer;
pub(crate) mod fetch;
mod play;
pub(crate) mod rows;
