//! Commits a batch in one transaction. Only one batch at a time is committed in the whole database.
//!
//! 1. One round trip begins the transaction, locks the shelf's row in `state`, and fetches every
//!    stored record that the rules may need for this batch.
//! 2. Then Hark applies the rules, in order, to the fetched records and to the batch's own records
//!    ([`play`]).
//! 3. The resulting deletions and insertions are executed and made durable.
//!
//! Since commits are sequential, the numbers of puts have no gaps and follow the order of commits,
//! and the rules hold even if several nodes write.

pub(crate) use batch::{CommittedBatch, PreparedPut, ShelfAdvance};
pub(crate) use committer::CommitterState;

mod batch;
mod committer;
pub(crate) mod fetch;
mod play;
pub(crate) mod rows;
