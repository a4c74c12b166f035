//! Requests about their author's own data, such as deletions, from authors whose other events are
//! refused.

use std::ops::ControlFlow;

use hark_archive::effects::{Effects, Rules as _};
use hark_archive::{Query, Record, SearchError, SearchProgress, Store};

use super::rules::{DELETION, NostrRules};

/// Maximum size of a request to vanish, in bytes, if its author may not publish and has no events
/// in the archive.
const UNWELCOME_BYTES_MAX: usize = 1 << 10;

/// Whether to carry out a request of an author who may not publish. A short request to vanish
/// is carried out, so that nobody can publish the author's earlier events here again. Any other
/// request is carried out only if there is something to delete. Otherwise strangers could store
/// any content here by calling it a deletion.
pub fn is_heard(store: &dyn Store, record: &[u8]) -> Result<bool, SearchError> {
    let Ok(record) = Record::new(record) else { return Ok(false) };
    if record.kind() != DELETION && record.wire().len() <= UNWELCOME_BYTES_MAX {
        return Ok(true);
    }
    let mut effects = Effects::default();
    NostrRules.effects(&record, &mut effects);
    effects.normalise();
    for query in &effects.erases {
        let query = Query { limit: 1, budget: u64::MAX, ..query.clone() };
        let (mut search, mut found) = (store.search(&query)?, false);
        while search.slice(u64::MAX, &mut |_| {
            found = true;
            ControlFlow::Break(())
        })? == SearchProgress::Paused
            && !found
        {}
        if found {
            return Ok(true);
        }
    }
    Ok(false)
}
