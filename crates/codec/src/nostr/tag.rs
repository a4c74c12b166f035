//! An event's tags, as views over the same bytes.

use super::span::Span;

/// Iterates over an event's tags.
#[derive(Clone)]
pub struct Tags<'a> {
    text: &'a str,
    scratch: &'a str,
    values: &'a [Span],
    ends: &'a [u32],
    /// How many values belong to tags that have been given out.
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
    /// Its name, the first string.
    #[inline]
    pub fn name(&self) -> &'a str {
        self.get(0).unwrap_or_default()
    }

    /// Whether that is its name. Bytes are cheaper to look at than characters, lengths than bytes.
    #[inline]
    pub(crate) fn is(&self, name: &str) -> bool {
        self.values.first().is_some_and(|span| {
            span.len() == name.len() && span.bytes(self.text, self.scratch) == name.as_bytes()
        })
    }

    /// Its value, the second string.
    #[inline]
    pub fn value(&self) -> Option<&'a str> {
        self.get(1)
    }

    /// Its name, if that is a single letter.
    #[inline]
    pub fn letter(&self) -> Option<u8> {
        let span = self.values.first().filter(|span| span.len() == 1)?;
        match *span.bytes(self.text, self.scratch) {
            [letter] if letter.is_ascii_alphabetic() => Some(letter),
            _ => None,
        }
    }

    /// Any of its strings.
    #[inline]
    pub fn get(&self, at: usize) -> Option<&'a str> {
        self.values.get(at).map(|span| span.get(self.text, self.scratch))
    }

    /// How many strings it has, name included: at least one.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// All its strings.
    #[inline]
    pub fn iter(&self) -> impl Iterator<Item = &'a str> + Clone + use<'a> {
        let Self { text, scratch, values } = *self;
        values.iter().map(move |span| span.get(text, scratch))
    }

    /// Where its value stands: nowhere without one.
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
