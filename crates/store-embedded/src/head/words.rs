//! The words of a head, in the order in which they came.

/// Words, each once.
#[derive(Default)]
pub(super) struct HeadWords {
    text: String,
    /// Where each word ends in the text.
    ends: Vec<usize>,
}

/// Approximate bytes of memory of a word, without its letters.
pub(super) const WORD_BYTES: u64 = 8;

impl HeadWords {
    /// Adds a word that is not there yet.
    pub(super) fn add(&mut self, word: &str) {
        self.text.push_str(word);
        self.ends.push(self.text.len());
    }

    /// Approximate bytes of memory, or of the words in a file.
    pub(super) fn bytes(&self) -> u64 {
        self.text.len() as u64 + self.ends.len() as u64 * WORD_BYTES
    }

    /// All words.
    pub(super) fn iter(&self) -> impl Iterator<Item = &str> {
        let starts = std::iter::once(&0).chain(&self.ends);
        starts.zip(&self.ends).map(|(&start, &end)| &self.text[start..end])
    }
}
