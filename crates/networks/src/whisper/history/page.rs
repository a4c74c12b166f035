//! Pages of envelopes.

use hark_codec::whisper::HistoryCursor;

/// The bounds of a page.
#[derive(Clone, Copy, Debug)]
pub struct PageBounds {
    /// Maximum number of envelopes.
    pub envelopes: usize,
    /// Maximum size of the envelopes, in bytes. The first envelope is included whatever its size
    /// is.
    pub bytes: usize,
}

/// A page of envelopes, in the order of the search.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EnvelopePage {
    /// RLP of the envelopes, one after the other.
    pub(super) rlp: Vec<u8>,
    /// The end of each envelope in `rlp`.
    pub(super) ends: Vec<usize>,
    /// The position of the last envelope; `None` if the page has no envelopes.
    pub last: Option<HistoryCursor>,
    /// Whether more matching envelopes follow after this page.
    pub more: bool,
    /// Whether a damaged envelope may be missing from the page.
    pub damaged: bool,
}

impl EnvelopePage {
    /// Number of envelopes.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether the page has no envelopes.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Returns the RLP of the envelopes, one after the other.
    pub fn rlp(&self) -> &[u8] {
        &self.rlp
    }

    /// Returns the RLP of each envelope.
    pub fn envelopes(&self) -> impl Iterator<Item = &[u8]> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(self.ends.iter()).map(|(start, end)| &self.rlp[start..*end])
    }

    /// Returns the position where the next page begins. `None` on the last page.
    pub fn cursor(&self) -> Option<HistoryCursor> {
        self.last.filter(|_| self.more)
    }
}
