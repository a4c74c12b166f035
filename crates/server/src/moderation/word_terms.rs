//! The words of all bans, or of all allows, which are searched for in events.

use std::collections::hash_map::RandomState;
use std::sync::Arc;

use aho_corasick::BuildError;

use super::terms::{RulingTerm, Terms, changes_max};
use crate::nostr::policy::{WordList, find_words};

/// The words of the entries.
#[derive(Clone, Debug, Default)]
pub(super) struct WordTerms {
    terms: Terms<Box<str>, RandomState>,
    /// The lists that find the words. Making a list of many words takes long, so the words that
    /// were added since `most` was made are in a list of their own. A word that is in a list but
    /// has no term was lifted.
    most: SearchedWords,
    new: SearchedWords,
}

/// Words, and the list that finds these words.
#[derive(Clone, Debug, Default)]
struct SearchedWords {
    list: Arc<WordList>,
    /// The words by their numbers in the list.
    words: Arc<Vec<Box<str>>>,
}

impl SearchedWords {
    fn new(words: Vec<Box<str>>) -> Result<Self, BuildError> {
        Ok(Self { list: Arc::new(WordList::new(&words)?), words: Arc::new(words) })
    }
}

impl WordTerms {
    /// Number of words.
    pub(super) fn len(&self) -> usize {
        self.terms.len()
    }

    /// Adds or replaces the entries of words, or removes the entries.
    pub(super) fn put<'w>(
        &mut self,
        words: impl Iterator<Item = (&'w str, Option<RulingTerm>)>,
    ) -> Result<(), BuildError> {
        let mut new = Vec::new();
        for (word, term) in words {
            let (word, is_set) = (Box::from(word), term.is_some());
            if !self.terms.put(&word, term) && is_set {
                new.push(word);
            }
        }
        if new.is_empty() {
            return Ok(());
        }
        let new: Vec<Box<str>> = self.new.words.iter().cloned().chain(new).collect();
        if new.len() > changes_max(self.most.words.len()) {
            self.most = SearchedWords::new(self.terms.subjects().cloned().collect())?;
            self.new = SearchedWords::default();
        } else {
            self.new = SearchedWords::new(new)?;
        }
        Ok(())
    }

    /// Returns the term of a word in one of the texts. See [`find_words`] for `texts`.
    pub(super) fn term<'t, I: IntoIterator<Item = &'t str>>(
        &self,
        texts: impl FnOnce(bool) -> I,
        now_s: &impl Fn() -> u64,
    ) -> Option<&RulingTerm> {
        let term_of = |searched: &SearchedWords, at: usize| {
            self.terms.get(searched.words.get(at)?).filter(|term| term.holds(now_s))
        };
        if self.new.words.is_empty() {
            return find_words([&self.most.list], texts, |_, at| term_of(&self.most, at));
        }
        find_words([&self.most.list, &self.new.list], texts, |list, at| {
            term_of(if list == 0 { &self.most } else { &self.new }, at)
        })
    }
}
