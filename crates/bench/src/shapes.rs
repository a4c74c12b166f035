//! The queries that clients send most. A shape is one kind of query, such as "home, 200 authors,
//! 100". The parameters of its queries are drawn from the measured data, so that answers have
//! realistic sizes. Each shape has many parameters, so that the same answer is not requested again
//! and again.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::ops::Range;

use anyhow::bail;
use hark_codec::nostr::json;
use hark_codec::record::Key;

use crate::events::{RARE_KIND, WRAP};
use crate::random::Random;
use crate::sample::{EventSample, Ranked};
use crate::text::hex;

/// Number of queries drawn for each shape, with different parameters.
pub(crate) const PARAMETERS: usize = 256;

/// One kind of query.
pub(crate) struct QueryShape {
    /// The shape's name, in tables and for `--shape`.
    pub(crate) name: &'static str,
    /// Whether answers without events are expected.
    pub(crate) may_be_empty: bool,
    make: fn(&mut ParameterSampler<'_>) -> Option<String>,
}

/// Returns the shapes with one of the `wanted` texts in their names, or all shapes if `wanted` is
/// empty. Fails with a list of all shapes if a text is in no name.
pub(crate) fn choose<T>(
    shapes: impl IntoIterator<Item = T>,
    name: impl Fn(&T) -> &str,
    wanted: &[String],
) -> anyhow::Result<Vec<T>> {
    let mut shapes: Vec<T> = shapes.into_iter().collect();
    for part in wanted {
        if !shapes.iter().any(|shape| name(shape).contains(part.as_str())) {
            let names: Vec<String> =
                shapes.iter().map(|shape| format!("  {}", name(shape))).collect();
            bail!("no shape has `{part}` in its name. There are:\n{}", names.join("\n"));
        }
    }
    shapes.retain(|shape| {
        wanted.is_empty() || wanted.iter().any(|part| name(shape).contains(part.as_str()))
    });
    Ok(shapes)
}

/// The name of the inbox shape. Only its owner may read an inbox, so the queries are made for each
/// connection separately.
pub(crate) const INBOX: &str = "inbox #p 1059";

/// All shapes but the inbox, in the order of the tables.
pub(crate) const SHAPES: [QueryShape; 17] = [
    shape("1 id", |draw| draw.ids(1)),
    shape("20 ids", |draw| draw.ids(20)),
    shape("author+kinds 20", |draw| {
        let author = hex(&draw.author(2_000)?);
        Some(format!(r#"{{"authors":["{author}"],"kinds":[1,6],"limit":20}}"#))
    }),
    shape("home, 200 authors, 100", |draw| {
        let authors = draw.follow_list_authors(200)?;
        Some(format!(r#"{{"authors":[{authors}],"kinds":[1,6],"limit":100}}"#))
    }),
    shape("thread #e", |draw| {
        let note = draw.around(&draw.sample.threads, 36.0)?;
        Some(format!(r##"{{"#e":["{}"],"kinds":[1],"limit":300}}"##, hex(&note)))
    }),
    shape("notifications #p+kinds 50", |draw| {
        let person = hex(&draw.ranked(&draw.sample.notified, 2_000)?);
        Some(format!(r##"{{"#p":["{person}"],"kinds":[1,6,7,9735],"limit":50}}"##))
    }),
    shape("hashtag 50", |draw| {
        let tag = draw.ranked(&draw.sample.hashtags, 300)?;
        Some(format!(r##"{{"#t":[{}],"kinds":[1],"limit":50}}"##, quoted(&tag)))
    }),
    shape("kinds only 500", |_| Some(r#"{"kinds":[1],"limit":500}"#.into())),
    shape("window (134)", |draw| {
        let times = &draw.sample.times;
        let from = draw.random.below(times.len().saturating_sub(134));
        let (since, until) = (times[from], times[(from + 133).min(times.len() - 1)]);
        Some(format!(r#"{{"since":{since},"until":{until},"limit":500}}"#))
    }),
    MANY_E,
    QueryShape {
        name: "value matching nothing",
        may_be_empty: true,
        make: |draw| {
            let nothing = hex(&draw.random.bytes());
            Some(format!(r##"{{"#e":["{nothing}"],"limit":100}}"##))
        },
    },
    shape("50 profiles", |draw| {
        let authors = draw.people(&draw.sample.profiles, 50)?;
        Some(format!(r#"{{"authors":[{authors}],"kinds":[0],"limit":50}}"#))
    }),
    QueryShape {
        name: "common #p, rare kind",
        may_be_empty: true,
        make: |draw| {
            let person = hex(&draw.ranked(&draw.sample.notified, 20)?);
            Some(format!(r##"{{"#p":["{person}"],"kinds":[{RARE_KIND}],"limit":50}}"##))
        },
    },
    shape("200 authors, rare kind", |draw| {
        let authors = draw.people(&draw.sample.rare, 200)?;
        Some(format!(r#"{{"authors":[{authors}],"kinds":[{RARE_KIND}],"limit":50}}"#))
    }),
    shape("#t and author", |draw| {
        let (author, tag) = draw.author_and_tag()?;
        Some(format!(r##"{{"#t":[{}],"authors":["{author}"],"limit":50}}"##, quoted(&tag)))
    }),
    shape("4 filters", |draw| {
        let author = hex(&draw.author(2_000)?);
        Some(format!(
            r##"{{"authors":["{author}"],"kinds":[0,3,10002]}},{{"authors":["{author}"],"kinds":[1,6],"limit":5}},{{"#p":["{author}"],"kinds":[1,7],"limit":5}},{{"authors":["{author}"],"kinds":[30023],"limit":2}}"##
        ))
    }),
    shape("latest 100", |_| Some(r#"{"limit":100}"#.into())),
];

/// Searches (NIP-50) for words of the file's notes.
pub(crate) const SEARCH_SHAPES: [QueryShape; 4] = [
    shape("search, 1 word", |draw| draw.search(|words, at| Some(words.get(at)?.clone()))),
    shape("search, 2 words", |draw| {
        draw.search(|words, at| {
            let (one, other) = (words.get(at)?, words.get((at + words.len() / 2) % words.len())?);
            (one != other).then(|| format!("{one} {other}"))
        })
    }),
    shape("search, phrase", |draw| {
        draw.search(|words, at| Some(format!("\"{}\"", words.get(at..at + 3)?.join(" "))))
    }),
    shape("search, beginning", |draw| {
        draw.search(|words, at| {
            let word = words.get(at).filter(|word| word.chars().count() > 4)?;
            Some(word.chars().take(4).chain(['*']).collect())
        })
    }),
];

/// The queries that overload SQL relays, for `hark bench sql` and `hark bench hammer`.
pub(crate) const STORE_SHAPES: [QueryShape; 10] = [
    MANY_E,
    shape("75 #e values, kind 7", |draw| Some(many_e(draw)? + r#","kinds":[7],"limit":100}"#)),
    shape("1 hot #p, 4 kinds", |draw| {
        let person = hex(&draw.any_of(&draw.sample.notified, 20)?);
        Some(format!(r##"{{"#p":["{person}"],"kinds":[1,6,7,9735],"limit":100}}"##))
    }),
    shape("5 hot #t", |draw| {
        let tags = draw.distinct(&draw.sample.hashtags, 0..20, 5)?;
        let tags: Vec<String> = tags.iter().map(|tag| quoted(tag)).collect();
        Some(format!(r##"{{"#t":[{}],"kinds":[1],"limit":50}}"##, tags.join(",")))
    }),
    shape("500 active authors", |draw| {
        let authors = draw.distinct(&draw.sample.authors, 1..2_000, 500)?;
        let authors = ParameterSampler::list(&authors.into_iter().collect())?;
        Some(format!(r#"{{"authors":[{authors}],"kinds":[1,6,7],"limit":100}}"#))
    }),
    shape("200 quiet authors", |draw| {
        let all = &draw.sample.authors;
        let quiet = all.partition_point(|(_, events)| *events > QUIET)..all.len();
        let authors = draw.distinct(all, quiet, 200)?;
        let authors = ParameterSampler::list(&authors.into_iter().collect())?;
        Some(format!(r#"{{"authors":[{authors}],"kinds":[1,6],"limit":100}}"#))
    }),
    shape("2 rare kinds", |draw| {
        let until = *draw.random.pick(&draw.sample.times);
        Some(format!(r#"{{"kinds":[1984,{RARE_KIND}],"until":{until},"limit":100}}"#))
    }),
    shape("100 ids", |draw| draw.ids(100)),
    shape("deep until", |draw| {
        let until = *draw.random.pick(&draw.sample.times);
        Some(format!(r#"{{"kinds":[1,6,7],"until":{until},"limit":100}}"#))
    }),
    shape("deep until, 1 author", |draw| {
        let (author, _) = draw.sample.authors.first()?;
        let until = *draw.random.pick(&draw.sample.times);
        Some(page(author, until, 100))
    }),
];

const MANY_E: QueryShape = shape("75 #e values", |draw| Some(many_e(draw)? + r#","limit":500}"#));

/// Makes the beginning of a filter for 75 notes, to which about 203 events refer in total.
fn many_e(draw: &mut ParameterSampler<'_>) -> Option<String> {
    let mut notes = String::new();
    for at in 0..75 {
        let note = draw.around(&draw.sample.named, 203.0 / 75.0)?;
        let _ = write!(notes, "{}\"{}\"", if at == 0 { "" } else { "," }, hex(&note));
    }
    Some(format!(r##"{{"#e":[{notes}]"##))
}

/// Maximum number of notes of a quiet author.
const QUIET: u32 = 6;

const fn shape(
    name: &'static str,
    make: fn(&mut ParameterSampler<'_>) -> Option<String>,
) -> QueryShape {
    QueryShape { name, may_be_empty: false, make }
}

impl QueryShape {
    /// Draws the filters of [`PARAMETERS`] REQs, as JSON. The same sample gives the same filters.
    /// The list is empty if the sample has nothing to draw from.
    pub(crate) fn filters(&self, sample: &EventSample) -> Vec<String> {
        let mut draw = ParameterSampler::new(sample, 11);
        (0..PARAMETERS).map_while(|_| (self.make)(&mut draw)).collect()
    }
}

/// Makes the filter for a person's gift wraps.
pub(crate) fn inbox(person: &Key) -> String {
    format!(r##"{{"#p":["{}"],"kinds":[{WRAP}],"limit":100}}"##, hex(person))
}

/// Makes the filter for a page of an author's notes: at most `page` notes at or before `until`.
pub(crate) fn page(author: &Key, until: u64, page: usize) -> String {
    format!(r#"{{"authors":["{}"],"kinds":[1],"until":{until},"limit":{page}}}"#, hex(author))
}

/// Returns text as a JSON string.
pub(crate) fn quoted(text: &str) -> String {
    let mut out = Vec::new();
    json::write_string(&mut out, text);
    String::from_utf8_lossy(&out).into_owned()
}

/// Draws the parameters of queries from a sample.
pub(crate) struct ParameterSampler<'a> {
    sample: &'a EventSample,
    random: Random,
    /// The sum of the counts of all things drawn by `around`, and the number of these things.
    counted: u64,
    drawn: u64,
}

impl<'a> ParameterSampler<'a> {
    /// Creates a sampler. The same seed draws the same parameters of a sample.
    pub(crate) fn new(sample: &'a EventSample, seed: u64) -> Self {
        Self { sample, random: Random::new(seed), counted: 0, drawn: 0 }
    }

    /// Makes a search from a note. `pick` turns the note's words, from a random position on, into
    /// the search text.
    fn search(&mut self, pick: fn(&[String], usize) -> Option<String>) -> Option<String> {
        (0..1_000).find_map(|_| {
            let note = self.sample.notes.get(self.random.below(self.sample.notes.len()))?;
            let is_part = |c: char| !c.is_alphanumeric();
            let words: Vec<String> =
                note.split(is_part).filter(|w| !w.is_empty()).map(str::to_lowercase).collect();
            let search = quoted(&pick(&words, self.random.below(words.len()))?);
            Some(format!(r#"{{"search":{search},"kinds":[1],"limit":50}}"#))
        })
    }

    fn ids(&mut self, count: usize) -> Option<String> {
        let mut ids = BTreeSet::new();
        // The tries are bounded, since a small sample may have too few ids.
        for _ in 0..2 * count {
            if ids.len() < count && !self.sample.ids.is_empty() {
                ids.insert(hex(self.random.pick(&self.sample.ids)));
            }
        }
        let list: Vec<String> = ids.into_iter().map(|id| format!("\"{id}\"")).collect();
        (!list.is_empty()).then(|| format!(r#"{{"ids":[{}]}}"#, list.join(",")))
    }

    /// Draws any of the first `bound` things.
    fn any_of<T: Clone>(&mut self, from: &Ranked<T>, bound: usize) -> Option<T> {
        let (thing, _) = from.get(self.random.below(from.len().min(bound)))?;
        Some(thing.clone())
    }

    /// Draws `count` different things with these ranks. Draws all of them if there are fewer.
    fn distinct<T: Clone + Ord>(
        &mut self,
        from: &Ranked<T>,
        ranks: Range<usize>,
        count: usize,
    ) -> Option<Vec<T>> {
        let from = from.get(ranks.start..ranks.end.min(from.len()))?;
        let mut found = BTreeSet::new();
        for _ in 0..8 * count {
            if found.len() < count {
                found.insert(from.get(self.random.below(from.len()))?.0.clone());
            }
        }
        (!found.is_empty()).then(|| found.into_iter().collect())
    }

    /// Draws one of the first `bound` things. Earlier things are drawn more often.
    pub(crate) fn ranked<T: Clone>(&mut self, from: &Ranked<T>, bound: usize) -> Option<T> {
        let rank = self.random.zipf(from.len().min(bound));
        from.get(rank).map(|(thing, _)| thing.clone())
    }

    /// Draws an author. Busy authors are drawn more often, except the busiest, which has no
    /// followers and is never drawn.
    pub(crate) fn author(&mut self, bound: usize) -> Option<Key> {
        let rank = 1 + self.random.zipf((self.sample.authors.len().checked_sub(1)?).min(bound));
        self.sample.authors.get(rank).map(|(key, _)| *key)
    }

    /// Draws a thing so that all things drawn so far have a count of `target` on average.
    fn around<T: Clone>(&mut self, from: &'a Ranked<T>, target: f64) -> Option<T> {
        let common = from.partition_point(|(_, count)| f64::from(*count) >= target);
        let more = self.counted as f64 <= target * self.drawn as f64;
        let part = if more { &from[..common] } else { &from[common..] };
        let part = if part.is_empty() { from } else { part };
        let (thing, count) = part.get(self.random.below(part.len()))?;
        self.counted += u64::from(*count);
        self.drawn += 1;
        Some(thing.clone())
    }

    fn list(keys: &BTreeSet<Key>) -> Option<String> {
        let list: Vec<String> = keys.iter().map(|key| format!("\"{}\"", hex(key))).collect();
        (!list.is_empty()).then(|| list.join(","))
    }

    /// Lists `count` authors like a person's follow list: some busy, most quiet.
    fn follow_list_authors(&mut self, count: usize) -> Option<String> {
        let mut keys = BTreeSet::new();
        for _ in 0..4 * count {
            if keys.len() < count {
                keys.insert(self.author(20_000)?);
            }
        }
        Self::list(&keys)
    }

    /// Lists `count` of these people. If there are fewer, further authors complete the list.
    fn people(&mut self, from: &'a Ranked<Key>, count: usize) -> Option<String> {
        let mut keys = BTreeSet::new();
        from.first()?;
        for _ in 0..4 * count {
            if keys.len() < count {
                keys.insert(self.random.pick(from).0);
            }
        }
        for _ in 0..4 * count {
            if keys.len() < count {
                keys.insert(self.author(20_000)?);
            }
        }
        Self::list(&keys)
    }

    fn author_and_tag(&mut self) -> Option<(String, String)> {
        (0..1_000).find_map(|_| {
            let author = self.author(2_000)?;
            let tag = self.sample.hashtag_of.get(&author)?;
            Some((hex(&author), tag.clone()))
        })
    }
}
