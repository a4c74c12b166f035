//! Filters: which events a client wants (NIP-01, NIP-50, NIP-91), parsed into flat, reused buffers.
//!
//! An empty list matches no event, except an empty list of `&t`, which has no effect. An absent
//! list is no condition. Lists are sorted and deduplicated, so equivalent filters compare as equal.
//!
//! An event must have at least one value of the list `#t`, and all values of `&t` (NIP-91). Values
//! of `&t` are removed from `#t`, since clients repeat them there for relays that know only `#t`.

use super::event::Event;
use super::filter_error::{Element, FilterError};
use super::json::{ByteSink, put_string, put_u64};
use super::read::JsonReader;
use super::span::Span;
use super::value_bound::ValueBound;
use crate::hex;
use crate::record::{Id, Key, Record};

/// One filter. Its buffers are reused: once they have grown, parsing allocates nothing.
///
/// ```
/// # use hark_codec::nostr::{Filter, FilterError};
/// let mut filter = Filter::default();
/// filter.parse(br##"{"kinds":[7,1],"#t":["bread"],"limit":10}"##)?;
/// assert_eq!(filter.kinds(), Some(&[1, 7][..]));
/// assert!(filter.tag(b't').is_some_and(|values| values.contains("bread")));
/// assert_eq!((filter.authors(), filter.limit()), (None, Some(10)));
/// # Ok::<(), FilterError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Filter {
    has_ids: bool,
    ids: Vec<Id>,
    has_authors: bool,
    authors: Vec<Key>,
    has_kinds: bool,
    kinds: Vec<u16>,
    /// Tag conditions, sorted by letter, each with its range of `values`. For the same letter, the
    /// condition `#` comes before the condition `&`.
    groups: Vec<Group>,
    values: Vec<Span>,
    /// All strings, one after the other.
    text: String,
    since: Option<u64>,
    until: Option<u64>,
    limit: Option<u64>,
    search: Option<Span>,
}

#[derive(Clone, Copy, Debug)]
struct Group {
    letter: u8,
    /// True if an event must have all values (`&t`), false if one value is enough (`#t`).
    is_and: bool,
    from: u32,
    to: u32,
}

impl Group {
    fn range(&self) -> std::ops::Range<usize> {
        self.from as usize..self.to as usize
    }
}

impl Filter {
    /// Removes all conditions, so that the filter matches every event. The buffers stay.
    pub fn clear(&mut self) {
        self.ids.clear();
        self.authors.clear();
        self.kinds.clear();
        self.groups.clear();
        self.values.clear();
        self.text.clear();
        (self.has_ids, self.has_authors, self.has_kinds) = (false, false, false);
        (self.since, self.until, self.limit, self.search) = (None, None, None, None);
    }

    /// Reads `bytes`, which must be exactly one filter.
    pub fn parse(&mut self, bytes: &[u8]) -> Result<(), FilterError> {
        let mut reader = JsonReader::new(bytes)?;
        reader.skip_space();
        self.read(&mut reader, usize::MAX)?;
        Ok(reader.end()?)
    }

    /// Reads the object at the cursor. All its lists together may have `values_max` values.
    pub(crate) fn read(
        &mut self,
        reader: &mut JsonReader<'_>,
        values_max: usize,
    ) -> Result<(), FilterError> {
        self.clear();
        let mut bound = ValueBound::new(values_max);
        if !reader.eat(b'{') {
            return Err(FilterError::NoObject);
        }
        let mut first = true;
        while reader.next_item(&mut first, b'}')? {
            let text_len = self.text.len();
            let key = reader.key(&mut self.text)?;
            let element = element(key.get(reader.text(), &self.text))?;
            self.text.truncate(text_len);
            self.read_element(reader, element, &mut bound)?;
        }
        self.groups.sort_unstable_by_key(|group| (group.letter, group.is_and));
        self.remove_and_values();
        Ok(())
    }

    /// Removes the values of `&t` from `#t`. If `#t` then has no values, its condition is removed.
    fn remove_and_values(&mut self) {
        let mut at = 0;
        while let Some([one, all]) = self.groups.get(at..at + 2) {
            let (one, all) = (*one, *all);
            if one.letter != all.letter || one.from == one.to {
                at += 1;
                continue;
            }
            let mut kept = one.from as usize;
            for n in one.range() {
                let value = self.values[n];
                if !self.values_in(&all).contains(value.get("", &self.text)) {
                    self.values.swap(kept, n);
                    kept += 1;
                }
            }
            if kept == one.from as usize {
                self.groups.remove(at);
            } else {
                self.groups[at].to = kept as u32;
                at += 1;
            }
        }
    }

    fn read_element(
        &mut self,
        reader: &mut JsonReader<'_>,
        element: Element,
        bound: &mut ValueBound,
    ) -> Result<(), FilterError> {
        let fresh = match element {
            Element::Ids => {
                let fresh = !std::mem::replace(&mut self.has_ids, true);
                read_keys(reader, element, bound, &mut self.ids)?;
                fresh
            }
            Element::Authors => {
                let fresh = !std::mem::replace(&mut self.has_authors, true);
                read_keys(reader, element, bound, &mut self.authors)?;
                fresh
            }
            Element::Kinds => {
                let fresh = !std::mem::replace(&mut self.has_kinds, true);
                read_kinds(reader, bound, &mut self.kinds)?;
                fresh
            }
            Element::Tag(letter) | Element::AndTag(letter) => {
                let is_and = matches!(element, Element::AndTag(_));
                let is_other = |group: &Group| (group.letter, group.is_and) != (letter, is_and);
                let fresh = self.groups.iter().all(is_other);
                self.read_values(reader, element, bound, letter)?;
                fresh
            }
            Element::Since => self.since.replace(read_number(reader, element)?).is_none(),
            Element::Until => self.until.replace(read_number(reader, element)?).is_none(),
            Element::Limit => self.limit.replace(read_number(reader, element)?).is_none(),
            Element::Search => {
                let words = read_string(reader, element, &mut self.text)?;
                self.search.replace(words).is_none()
            }
        };
        if fresh { Ok(()) } else { Err(FilterError::Duplicate(element)) }
    }

    fn read_values(
        &mut self,
        reader: &mut JsonReader<'_>,
        element: Element,
        bound: &mut ValueBound,
        letter: u8,
    ) -> Result<(), FilterError> {
        let is_key = matches!(letter, b'e' | b'p');
        let from = self.values.len();
        let mut index = 0;
        read_list(reader, element, bound, |reader| {
            if is_key && reader.clone().hex::<64, _>(hex::decode_32).is_none() {
                return Err(FilterError::Hex { element, index });
            }
            index += 1;
            self.values.push(read_string(reader, element, &mut self.text)?);
            Ok(())
        })?;
        let text = &self.text;
        let own = self.values.get_mut(from..).unwrap_or_default();
        own.sort_unstable_by_key(|span| span.get("", text));
        let distinct = from + move_distinct_forward(own, text);
        self.values.truncate(distinct);
        let is_and = matches!(element, Element::AndTag(_));
        self.groups.push(Group { letter, is_and, from: from as u32, to: distinct as u32 });
        Ok(())
    }

    /// The wanted ids, ascending; `None` means any id.
    pub fn ids(&self) -> Option<&[Id]> {
        self.has_ids.then_some(&self.ids)
    }

    /// The wanted authors, ascending; `None` means any author.
    pub fn authors(&self) -> Option<&[Key]> {
        self.has_authors.then_some(&self.authors)
    }

    /// The wanted kinds, ascending; `None` means any kind.
    pub fn kinds(&self) -> Option<&[u16]> {
        self.has_kinds.then_some(&self.kinds)
    }

    /// The wanted tags, by ascending letter (`#e` is `b'e'`). For each letter, an event must have
    /// one of the values.
    pub fn tags(&self) -> impl Iterator<Item = (u8, TagValues<'_>)> + Clone {
        self.values_of(false)
    }

    /// The tags for which an event must have all values, by ascending letter (`&t` is `b't'`).
    pub fn and_tags(&self) -> impl Iterator<Item = (u8, TagValues<'_>)> + Clone {
        self.values_of(true)
    }

    fn values_of(&self, is_and: bool) -> impl Iterator<Item = (u8, TagValues<'_>)> + Clone {
        let groups = self.groups.iter().filter(move |group| group.is_and == is_and);
        groups.map(|group| (group.letter, self.values_in(group)))
    }

    fn values_in(&self, group: &Group) -> TagValues<'_> {
        TagValues { text: &self.text, spans: self.values.get(group.range()).unwrap_or_default() }
    }

    /// The wanted values of one letter; `None` means any value.
    pub fn tag(&self, letter: u8) -> Option<TagValues<'_>> {
        self.tags().find(|(name, _)| *name == letter).map(|(_, values)| values)
    }

    /// Earliest `created_at`, inclusive.
    pub fn since(&self) -> Option<u64> {
        self.since
    }

    /// Latest `created_at`, inclusive.
    pub fn until(&self) -> Option<u64> {
        self.until
    }

    /// Maximum number of stored events in the answer.
    pub fn limit(&self) -> Option<u64> {
        self.limit
    }

    /// The search text (NIP-50).
    pub fn search(&self) -> Option<&str> {
        self.search.map(|span| span.get("", &self.text))
    }

    /// Whether no event at all can match: a list is empty, or `since` is after `until`.
    pub fn matches_nothing(&self) -> bool {
        (self.has_ids && self.ids.is_empty())
            || (self.has_authors && self.authors.is_empty())
            || (self.has_kinds && self.kinds.is_empty())
            || self.tags().any(|(_, values)| values.is_empty())
            || matches!((self.since, self.until), (Some(since), Some(until)) if since > until)
    }

    /// Whether the event matches the filter. `limit` and `search` are ignored.
    pub fn matches(&self, event: &Event<'_>) -> bool {
        self.matches_head(event.id(), event.pubkey(), event.created_at(), u32::from(event.kind()))
            && self.tags().all(|(letter, values)| {
                event.labels().any(|(name, value)| name == letter && values.contains(value))
            })
            && self.and_tags().all(|(letter, values)| {
                let has = |wanted| event.labels().any(|label| label == (letter, wanted));
                values.iter().all(has)
            })
    }

    /// Does the same as [`Filter::matches`], for the record of an event.
    pub fn matches_record(&self, record: &Record<'_>) -> bool {
        let Some(author) = record.author() else { return false };
        self.matches_head(record.id(), author, record.time(), record.kind())
            && self.tags().all(|(letter, values)| {
                let mut labels = record.labels();
                labels.any(|(name, value)| name == letter && values.contains_bytes(value))
            })
            && self.and_tags().all(|(letter, values)| {
                let has = |wanted: &str| {
                    record.labels().any(|label| label == (letter, wanted.as_bytes()))
                };
                values.iter().all(has)
            })
    }

    fn matches_head(&self, id: &Id, author: &Key, time: u64, kind: u32) -> bool {
        self.since.is_none_or(|since| time >= since)
            && self.until.is_none_or(|until| time <= until)
            && (!self.has_kinds || self.kinds.iter().any(|wanted| u32::from(*wanted) == kind))
            && (!self.has_authors || self.authors.binary_search(author).is_ok())
            && (!self.has_ids || self.ids.binary_search(id).is_ok())
    }

    /// Appends the filter as JSON: elements in a fixed order, values ascending, no white space.
    pub fn write_json(&self, out: &mut Vec<u8>) {
        let mut comma: &[u8] = b"{";
        let mut open = |out: &mut Vec<u8>, name: &str| {
            out.put(comma);
            comma = b",";
            put_string(out, name);
            out.put(b":");
        };
        let keys = [("ids", self.ids()), ("authors", self.authors())];
        for (name, keys) in keys.iter().filter_map(|(name, keys)| Some((name, (*keys)?))) {
            open(out, name);
            put_list(out, keys, |out, key| {
                out.put(b"\"");
                out.put(&hex::encode_32(key));
                out.put(b"\"");
            });
        }
        if let Some(kinds) = self.kinds() {
            open(out, "kinds");
            put_list(out, kinds, |out, kind| put_u64(out, u64::from(*kind)));
        }
        for group in &self.groups {
            let name = [if group.is_and { b'&' } else { b'#' }, group.letter];
            open(out, str::from_utf8(&name).unwrap_or_default());
            put_list(out, self.values_in(group).iter(), put_string);
        }
        let numbers = [("since", self.since), ("until", self.until), ("limit", self.limit)];
        for (name, number) in numbers.iter().filter_map(|(name, number)| Some((name, (*number)?))) {
            open(out, name);
            put_u64(out, number);
        }
        if let Some(search) = self.search() {
            open(out, "search");
            put_string(out, search);
        }
        out.put(if comma == b"{" { b"{}" } else { b"}" });
    }
}

/// The wanted values of one tag, ascending.
#[derive(Clone, Copy, Debug)]
pub struct TagValues<'a> {
    text: &'a str,
    spans: &'a [Span],
}

impl<'a> TagValues<'a> {
    /// All values.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &'a str> + Clone + use<'a> {
        let text = self.text;
        self.spans.iter().map(move |span| span.get("", text))
    }

    /// The number of values.
    pub fn len(&self) -> usize {
        self.spans.len()
    }

    /// Whether there are no values. Then no event matches.
    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    /// Whether `value` is one of the values.
    pub fn contains(&self, value: &str) -> bool {
        self.contains_bytes(value.as_bytes())
    }

    fn contains_bytes(&self, value: &[u8]) -> bool {
        let compare = |span: &Span| span.get("", self.text).as_bytes().cmp(value);
        self.spans.binary_search_by(compare).is_ok()
    }
}

fn element(key: &str) -> Result<Element, FilterError> {
    Ok(match key {
        "ids" => Element::Ids,
        "authors" => Element::Authors,
        "kinds" => Element::Kinds,
        "since" => Element::Since,
        "until" => Element::Until,
        "limit" => Element::Limit,
        "search" => Element::Search,
        _ => match *key.as_bytes() {
            [b'#', letter] if letter.is_ascii_alphabetic() => Element::Tag(letter),
            [b'&', letter] if letter.is_ascii_alphabetic() => Element::AndTag(letter),
            _ => return Err(FilterError::Unsupported(key.chars().take(32).collect())),
        },
    })
}

fn read_list<'a>(
    reader: &mut JsonReader<'a>,
    element: Element,
    bound: &mut ValueBound,
    mut read: impl FnMut(&mut JsonReader<'a>) -> Result<(), FilterError>,
) -> Result<(), FilterError> {
    if !reader.eat(b'[') {
        return Err(FilterError::NoArray(element));
    }
    let mut first = true;
    while reader.next_item(&mut first, b']')? {
        bound.charge()?;
        read(reader)?;
    }
    Ok(())
}

fn read_keys(
    reader: &mut JsonReader<'_>,
    element: Element,
    bound: &mut ValueBound,
    keys: &mut Vec<[u8; 32]>,
) -> Result<(), FilterError> {
    read_list(reader, element, bound, |reader| {
        let index = keys.len() as u32;
        let key = reader.hex::<64, _>(hex::decode_32);
        keys.push(key.ok_or(FilterError::Hex { element, index })?);
        Ok(())
    })?;
    if !keys.is_sorted_by(|a, b| a < b) {
        // Two big-endian numbers of 128 bits compare in the same order as the 32 bytes of the key.
        let number = |key: &[u8; 32]| {
            let (high, low) = key.split_at(16);
            [high, low].map(|half| half.try_into().map_or(0, u128::from_be_bytes))
        };
        keys.sort_unstable_by_key(number);
        keys.dedup();
    }
    Ok(())
}

fn read_kinds(
    reader: &mut JsonReader<'_>,
    bound: &mut ValueBound,
    kinds: &mut Vec<u16>,
) -> Result<(), FilterError> {
    read_list(reader, Element::Kinds, bound, |reader| {
        let kind = read_number(reader, Element::Kinds)?;
        kinds.push(u16::try_from(kind).map_err(|_| FilterError::KindRange(kind))?);
        Ok(())
    })?;
    kinds.sort_unstable();
    kinds.dedup();
    Ok(())
}

fn read_number(reader: &mut JsonReader<'_>, element: Element) -> Result<u64, FilterError> {
    reader.number().map_err(|reason| FilterError::Number { element, reason })
}

/// Reads a string and appends it to `text`, unescaped.
fn read_string(
    reader: &mut JsonReader<'_>,
    element: Element,
    text: &mut String,
) -> Result<Span, FilterError> {
    if reader.peek() != b'"' {
        return Err(FilterError::NoString(element));
    }
    let from = text.len();
    let span = reader.string(text)?;
    if !span.is_scratch() {
        text.push_str(span.get(reader.text(), ""));
    }
    Ok(Span::of_scratch(text, from))
}

/// Moves the distinct strings of a sorted list to the front and returns their number.
fn move_distinct_forward(spans: &mut [Span], text: &str) -> usize {
    let mut kept = 0;
    for at in 0..spans.len() {
        if kept == 0 || spans[at].get("", text) != spans[kept - 1].get("", text) {
            spans[kept] = spans[at];
            kept += 1;
        }
    }
    kept
}

fn put_list<T>(
    out: &mut Vec<u8>,
    items: impl IntoIterator<Item = T>,
    put: impl Fn(&mut Vec<u8>, T),
) {
    out.put(b"[");
    for (n, item) in items.into_iter().enumerate() {
        out.put(if n == 0 { b"" } else { b"," });
        put(out, item);
    }
    out.put(b"]");
}
