//! Bounds of clients' events and filters. Each comment describes the effect of exceeding the bound.
//!
//! The bounds are plain numbers, which the binary fills in from its settings. Names end with their
//! unit; `_max` means "up to and including".

/// Bounds of events from clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventLimits {
    /// Maximum size of one event as it is stored, in bytes. A larger event is answered with OK
    /// false `invalid:`.
    pub event_bytes_max: usize,
    /// Maximum number of characters of an event's content. A longer content is answered with OK
    /// false `invalid:`.
    pub content_chars_max: usize,
    /// Maximum number of tags of an event. An event with more tags is answered with OK false
    /// `invalid:`.
    pub event_tags_max: usize,
    /// Maximum number of tags of a list: an event of kind 3, or of a kind from 10000 to 39999. A
    /// list with more tags is answered with OK false `invalid:`. If `event_tags_max` is higher, it
    /// applies to lists, too.
    pub list_tags_max: usize,
    /// How far an event's time may lie in the future. An event further ahead is answered with OK
    /// false `invalid:`.
    pub created_at_ahead_s_max: u64,
    /// How old an event may be on arrival. With `None`, there is no bound. An older event is
    /// answered with OK false `invalid:`.
    pub created_at_behind_s_max: Option<u64>,
}

impl Default for EventLimits {
    fn default() -> Self {
        Self {
            // The size of the largest event that fits into a message. A list of 10,000 keys with
            // relays has about 1 MB. A private message of 64 KiB (NIP-44) that is wrapped twice
            // (NIP-59) has 154 KB.
            event_bytes_max: 1_088 << 10,
            content_chars_max: 160_000,
            event_tags_max: 2_500,
            list_tags_max: 10_000,
            created_at_ahead_s_max: 900,
            created_at_behind_s_max: None,
        }
    }
}

/// Bounds of the filters of a REQ or COUNT, and of the answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilterLimits {
    /// Maximum number of filters in a REQ or COUNT. A REQ or COUNT with more filters is answered
    /// with CLOSED `blocked:`.
    pub filters_max: usize,
    /// Maximum number of values in one filter (ids, authors, kinds and tag values together). A
    /// filter with more values is answered with CLOSED `blocked:`.
    pub filter_values_max: usize,
    /// Maximum number of stored records that are sent for a filter without a limit.
    pub limit_default: usize,
    /// Maximum number of stored records that are sent for a filter, even if the filter has a higher
    /// limit.
    pub limit_max: usize,
    /// Maximum total number of rows that the searches of one REQ or COUNT may visit. In each part
    /// of the archive, each lookup of a value or list also counts as a row, except the first 64.
    /// Above the bound, the answer ends with CLOSED `error:`.
    pub query_rows_max: u64,
}

impl Default for FilterLimits {
    fn default() -> Self {
        Self {
            filters_max: 20,
            filter_values_max: 2_500,
            limit_default: 500,
            limit_max: 5_000,
            query_rows_max: 2_000_000,
        }
    }
}
