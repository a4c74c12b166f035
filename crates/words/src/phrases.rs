//! The places (positions) of a record's words. They are sorted by the sequence of words that begins
//! at each place. So a phrase is found in a few steps per word of the phrase, even if the record
//! repeats these words often.

use std::ops::Range;

/// Maximum number of words in a phrase: the maximum number of words in a whole search text.
const PHRASE_MAX: usize = 64;

/// The words of a record as numbers, and their places in sorted order.
#[derive(Clone, Debug, Default)]
pub(crate) struct WordOrder {
    /// For each place, the number of its word plus one; 0 for a boundary between texts.
    words: Vec<u32>,
    /// The places, sorted by the [`PHRASE_MAX`] words that begin at each place.
    places: Vec<u32>,
}

impl WordOrder {
    /// Makes the order of words that have these numbers; `None` stands for a boundary between
    /// texts.
    pub(crate) fn new(numbers: impl Iterator<Item = Option<u32>>) -> Self {
        let words: Vec<u32> = numbers.map(|number| number.map_or(0, |number| number + 1)).collect();
        let mut places: Vec<u32> = (0..words.len() as u32).collect();
        // The rank of each place, compared by one word, then by two words, four words, and so on.
        let mut ranks = words.clone();
        let mut len = 1;
        loop {
            let behind = |at: u32| ranks.get(at as usize + len).map_or(0, |rank| rank + 1);
            let key = |at: u32| (ranks[at as usize], behind(at));
            places.sort_unstable_by_key(|&at| key(at));
            if 2 * len >= PHRASE_MAX {
                return Self { words, places };
            }
            let (mut next, mut rank, mut last) = (vec![0; ranks.len()], 0, None);
            for &at in &places {
                if last.replace(key(at)).is_some_and(|last| last != key(at)) {
                    rank += 1;
                }
                next[at as usize] = rank;
            }
            ranks = next;
            len *= 2;
        }
    }

    /// Returns whether the words with the numbers `phrase` occur in a row, followed by a word with
    /// a number in `last`. Calls `step` for each comparison of two words.
    pub(crate) fn has(&self, phrase: &[u32], last: Range<u32>, step: &mut impl FnMut()) -> bool {
        let wanted = || phrase.iter().copied().chain([last.start]).map(|number| number + 1);
        let is_before = |&at: &u32| {
            let here = self.words[at as usize..].iter().copied();
            let mut pairs = here.zip(wanted()).inspect(|_| step());
            // If one sequence of words is the start of the other, the shorter one sorts first.
            let unequal = pairs.find(|(here, wanted)| here != wanted);
            unequal.map_or_else(
                || self.words.len() - (at as usize) < phrase.len() + 1,
                |(here, wanted)| here < wanted,
            )
        };
        let at = self.places.partition_point(is_before);
        self.places.get(at).is_some_and(|&at| {
            let here = &self.words[at as usize..];
            let followed = here.get(phrase.len()).copied().unwrap_or(0);
            (last.start + 1..last.end + 1).contains(&followed)
                && here.iter().zip(phrase).all(|(here, number)| *here == number + 1)
        })
    }
}
