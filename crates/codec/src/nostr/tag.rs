//! An event's tags, as views over the event's bytes.

use super::span::Span;

/// Iterates over an event's tags.
#[derive(Clone)]
pub struct Tags<'a> {
    text: &'a str,
    scratch: &'a str,
    values: &'a [Span],
    ends: &'a [u32],
    /// Number of values in the tags that the iterator has already returned.
    given: u32,
}

impl<'a> Tags<'a> {
    #[inline]
    pub(crate) fn new(
        text: &'a str,
        scratch: &'a str,
        values: &'a [Span],
        ends: &'a [u32],
    ) -> Self {
        Self { text, scratch, values, ends, given: 0 }
    }
}

impl<'a> Iterator for Tags<'a> {
    type Item = Tag<'a>;

    #[inline]
    fn next(&mut self) -> Option<Tag<'a>> {
        let (&end, ends) = self.ends.split_first()?;
        let (values, rest) = self.values.split_at_checked((end - self.given) as usize)?;
        (self.ends, self.values, self.given) = (ends, rest, end);
        Some(Tag { text: self.text, scratch: self.scratch, values })
    }
}

/// One tag: a name and values.
#[derive(Clone, Copy)]
pub struct Tag<'a> {
    text: &'a str,
    scratch: &'a str,
    values: &'a [Span],
}

impl<'a> Tag<'a> {
    /// The tag's name, which is its first string.
    #[inline]
    pub fn name(&self) -> &'a str {
        self.get(0).unwrap_or_default()
    }

    /// Whether `name` is the tag's name. The lengths are compared first, which is cheaper than
    /// comparing bytes.
    #[inline]
    pub(crate) fn is(&self, name: &str) -> bool {
        self.values.first().is_some_and(|span| {
            span.len() == name.len() && span.bytes(self.text, self.scratch) == name.as_bytes()
        })
    }

    /// The tag's value, which is its second string.
    #[inline]
    pub fn value(&self) -> Option<&'a str> {
        self.get(1)
    }

    /// The letter that is the tag's name; `None` if the name is not a single letter.
    #[inline]
    pub fn letter(&self) -> Option<u8> {
        let span = self.values.first().filter(|span| span.len() == 1)?;
        match *span.bytes(self.text, self.scratch) {
            [letter] if letter.is_ascii_alphabetic() => Some(letter),
            _ => None,
        }
    }

    /// The string at index `at`. Index 0 is the name.
    #[inline]
    pub fn get(&self, at: usize) -> Option<&'a str> {
        self.values.get(at).map(|span| span.get(self.text, self.scratch))
    }

    /// The number of strings, including the name; never 0.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// All strings of the tag.
    #[inline]
    pub fn iter(&self) -> impl Iterator<Item = &'a str> + Clone + use<'a> {
        let Self { text, scratch, values } = *self;
        values.iter().map(move |span| span.get(text, scratch))
    }

    /// The span of the tag's value; empty if there is no value.
    #[inline]
    pub(crate) fn value_span(&self) -> Span {
        self.values.get(1).copied().unwrap_or_default()
    }
}

impl std::fmt::Debug for Tag<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}
