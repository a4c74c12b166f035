//! What each network adds to the archive: the rules of its records, what may come in, and its filters as
//! queries. A folder each. Nothing here does I/O, reads a clock or needs an async runtime.

pub mod nostr;
pub mod waku;
