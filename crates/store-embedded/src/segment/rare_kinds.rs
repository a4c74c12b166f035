//! The rare kinds of a segment. Their terms are kept in memory.

use std::ops::Range;
use std::sync::Arc;

use super::file::SegmentFile;

/// The rare kinds are the kinds with the fewest rows. Together they have at most one row in this
/// many.
const RARE_SHARE: u32 = 32;
/// A kind with more terms per row than this is not rare, because the terms of rare kinds are kept
/// in memory.
const RARE_TERMS: usize = 16;

/// Returns the terms of the rare kinds, ascending.
pub(super) fn rare_terms(
    file: &SegmentFile,
    kinds: &[(u32, Range<u32>)],
) -> Arc<[(u32, Box<[u64]>)]> {
    let mut by_rows: Vec<(usize, u32)> = kinds.iter().map(|(k, list)| (list.len(), *k)).collect();
    by_rows.sort_unstable();
    let mut room = (file.rows / RARE_SHARE) as usize;
    let mut rare: Vec<RareKind> = by_rows
        .into_iter()
        .map_while(|(rows, kind)| {
            room = room.checked_sub(rows)?;
            Some(RareKind { kind, terms: Some(Vec::new()), terms_max: rows * RARE_TERMS })
        })
        .collect();
    rare.sort_unstable_by_key(|rare| rare.kind);
    file.read_ahead_kinds();
    for entry in 0..file.entries() {
        if let Ok(at) = rare.binary_search_by_key(&file.kind(entry), |rare| rare.kind) {
            rare[at].add(|| file.entry_term(entry));
        }
    }
    rare.into_iter().filter_map(|rare| Some((rare.kind, rare.terms?.into()))).collect()
}

/// A kind that may be rare, while its terms are counted.
struct RareKind {
    kind: u32,
    /// `None` if the kind has too many terms to be rare.
    terms: Option<Vec<u64>>,
    terms_max: usize,
}

impl RareKind {
    fn add(&mut self, term: impl FnOnce() -> u64) {
        match &mut self.terms {
            Some(terms) if terms.len() < self.terms_max => terms.push(term()),
            terms => *terms = None,
        }
    }
}
