//! Questions that were never asked before: each key is drawn from all of the file, every key with
//! the same probability, and each key is asked for once.

use super::loads::{ShapeRequests, requests};
use crate::random::Random;
use crate::sample::EventSample;
use crate::shapes::{self, quoted};
use crate::text::hex;

/// Maximum number of keys of a shape.
const KEYS: usize = 20_000;
/// Seed of the order of the keys.
const SEED: u64 = 23;

/// Makes the loads. A shape for which the sample has no keys is left out.
pub(super) fn loads(sample: &EventSample) -> Vec<ShapeRequests> {
    let ids = drawn(&sample.ids, |id| format!(r#"{{"ids":["{}"]}}"#, hex(id)));
    let authors = drawn(&sample.authors, |(author, _)| {
        format!(r#"{{"authors":["{}"],"kinds":[1,6],"limit":20}}"#, hex(author))
    });
    let threads = drawn(&sample.threads, |(note, _)| {
        format!(r##"{{"#e":["{}"],"kinds":[1],"limit":300}}"##, hex(note))
    });
    let named =
        drawn(&sample.named, |(event, _)| format!(r##"{{"#e":["{}"],"limit":100}}"##, hex(event)));
    let notified = drawn(&sample.notified, |(person, _)| {
        format!(r##"{{"#p":["{}"],"kinds":[1,6,7,9735],"limit":50}}"##, hex(person))
    });
    let hashtags = drawn(&sample.hashtags, |(tag, _)| {
        format!(r##"{{"#t":[{}],"kinds":[1],"limit":50}}"##, quoted(tag))
    });
    let profiles = drawn(&sample.profiles, |(author, _)| {
        format!(r#"{{"authors":["{}"],"kinds":[0],"limit":1}}"#, hex(author))
    });
    let mut times = sample.times.clone();
    times.dedup();
    let times = drawn(&times, |until| format!(r#"{{"kinds":[1],"until":{until},"limit":100}}"#));
    let named_filters = [
        ("cold, 1 id", ids),
        ("cold, author+kinds 20", authors),
        ("cold, thread #e", threads),
        ("cold, #e", named),
        ("cold, notifications #p+kinds 50", notified),
        ("cold, hashtag 50", hashtags),
        ("cold, 1 profile", profiles),
        ("cold, until 100", times),
    ];
    let load = |(name, filters): (&str, Vec<String>)| ShapeRequests {
        name: name.into(),
        may_be_empty: true,
        requests: vec![requests(&filters)],
        as_reader: false,
        is_once: true,
    };
    named_filters.into_iter().filter(|(_, filters)| !filters.is_empty()).map(load).collect()
}

/// Draws different keys and makes a filter of each.
fn drawn<T>(keys: &[T], filter: impl Fn(&T) -> String) -> Vec<String> {
    let mut order: Vec<usize> = (0..keys.len()).collect();
    let mut random = Random::new(SEED);
    let count = keys.len().min(KEYS);
    for at in 0..count {
        order.swap(at, random.between(at, keys.len() - 1));
    }
    order.iter().take(count).filter_map(|at| keys.get(*at)).map(filter).collect()
}

/// Chooses the loads with these texts in their names.
pub(super) fn chosen(
    loads: Vec<ShapeRequests>,
    wanted: &[String],
) -> anyhow::Result<Vec<ShapeRequests>> {
    shapes::choose(loads, |load| &load.name, wanted)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_key_is_drawn_once_and_from_all_of_the_file() {
        let keys: Vec<usize> = (0..50_000).collect();
        let drawn = drawn(&keys, usize::to_string);
        let numbers: BTreeSet<usize> = drawn.iter().map(|key| key.parse().unwrap()).collect();
        assert_eq!((drawn.len(), numbers.len()), (KEYS, KEYS));
        for part in 0..10 {
            let count = numbers.range(part * 5_000..(part + 1) * 5_000).count();
            assert!((1_800..2_200).contains(&count), "{part}: {count}");
        }
    }
}
