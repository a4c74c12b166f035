//! The memory that a question needs.

use hark_codec::nostr::Filter;
use hark_networks::nostr::query;
use hark_networks::nostr::question_rules::QuestionRules;

/// Memory that a short value of a filter takes in the query and in the live index. In the index, a
/// list of many filters has two entries for each filter, one for each end of its time range.
const VALUE_BYTES: usize = 350;

/// Memory that a `search` takes in addition to the filter's values: for its words, the kinds that
/// have texts, and entries in the live index.
const SEARCH_BYTES: usize = 2 << 10;

/// Returns the memory for a question with a message of `bytes` bytes. The search needs memory, and a
/// filter takes far more memory than its text: an entry in the live index has about the same size
/// for a short value as for a long value.
pub(super) fn memory_bytes(bytes: usize, filters: &[Filter], rules: &QuestionRules) -> usize {
    let values: usize = filters.iter().map(query::values).sum();
    let of_values = (4 * bytes).max(VALUE_BYTES * values);
    let searches = filters.iter().filter(|filter| filter.search().is_some()).count();
    // The rules for questions add kinds to the queries.
    let of_filters = (512 + VALUE_BYTES * rules.added_values()) * filters.len();
    1024 + of_values + of_filters + SEARCH_BYTES * searches
}
