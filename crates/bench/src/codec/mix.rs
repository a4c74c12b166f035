//! Many events as one case. A parser that meets the same message again and again is faster than on
//! the events of a relay, which differ in size and form and are not in the processor's caches.

use std::path::Path;

use anyhow::ensure;

use super::{CodecCase, CodecSample, CodecSampleKind};
use crate::events::{EventGenerator, SEED};
use crate::lines::EventFile;
use crate::text::Vocabulary;

/// Makes the events that `hark bench gen --events COUNT` writes.
pub(super) fn generated(count: usize) -> anyhow::Result<CodecCase> {
    let events = EventGenerator::new(count as u64, SEED, Vocabulary::Few)?;
    let people = events.people().to_vec();
    let mut samples = Vec::with_capacity(count);
    for event in events {
        let mut line = Vec::new();
        event.sign(&people, true, &mut line)?;
        add(&mut samples, line.trim_ascii_end().to_vec());
    }
    Ok(case("generated events", samples))
}

/// Reads the first `count` events of a file, and writes each event in Hark's spelling.
pub(super) fn of_file(path: &Path, count: usize) -> anyhow::Result<CodecCase> {
    let (mut file, mut samples) = (EventFile::open(path)?, Vec::new());
    while samples.len() < count
        && let Some(event) = file.event()?
    {
        let mut json = Vec::new();
        event.write_json(&mut json);
        add(&mut samples, json);
    }
    ensure!(!samples.is_empty(), "{} has no events", path.display());
    Ok(case("events of the file", samples))
}

fn add(samples: &mut Vec<CodecSample>, json: Vec<u8>) {
    let name = format!("event {}", samples.len() + 1);
    samples.push(CodecSample::of_event(name, json));
}

fn case(name: &str, samples: Vec<CodecSample>) -> CodecCase {
    CodecCase { name: name.into(), what: CodecSampleKind::Event, samples }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_events_of_a_file_are_the_generated_events_of_the_same_number() {
        let path = std::env::temp_dir().join(format!("hark-mix-{}.jsonl", std::process::id()));
        crate::generate::write_file(&path, 50, SEED, (Vocabulary::Few, true)).unwrap();
        let read = of_file(&path, 40).unwrap();
        let all = of_file(&path, 100).unwrap();
        std::fs::remove_file(&path).unwrap();
        let made = generated(50).unwrap();
        assert_eq!((read.samples.len(), all.samples.len(), made.samples.len()), (40, 50, 50));
        for (read, made) in all.samples.iter().zip(&made.samples) {
            assert!(read.json == made.json && read.respelled == made.respelled, "{}", read.name);
            assert_ne!(read.json, read.respelled, "{}", read.name);
        }
    }
}
