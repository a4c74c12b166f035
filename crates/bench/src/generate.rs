//! `hark bench gen`: writes the events of a seed to a file. One thread makes the events, all cores
//! sign them, and one thread writes them in order. Only a few batches are in progress at a time.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write as _};
use std::path::Path;
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use anyhow::{Context as _, bail};
use hark_codec::crypto::KeyPair;
use parking_lot::Mutex;

use crate::args::GenArgs;
use crate::events::{EventGenerator, UnsignedEvent};
use crate::meter::ProgressMeter;
use crate::text::Vocabulary;
use crate::words;

/// Number of events of a batch, which one thread signs.
const BATCH: usize = 500;
/// Maximum number of batches in a queue.
const BATCHES: usize = 16;

/// A batch, and the channel to which its signed bytes are sent.
type SigningJob = (Vec<UnsignedEvent>, SyncSender<anyhow::Result<Vec<u8>>>);
/// The channel from which the writer receives a signed batch.
type SignedBatch = Receiver<anyhow::Result<Vec<u8>>>;

pub(crate) fn run(args: &GenArgs) -> anyhow::Result<ExitCode> {
    let vocabulary = if args.natural { Vocabulary::Natural } else { Vocabulary::Few };
    let bytes = write_file(&args.out, args.events, args.seed, (vocabulary, !args.unsigned))?;
    print_summary(&args.out, args.events, "events", bytes, args.seed);
    Ok(ExitCode::SUCCESS)
}

/// Writes the events of a seed to a file. Returns their bytes, and the size of the file on disk.
pub(crate) fn write_file(
    path: &Path,
    events: u64,
    seed: u64,
    (vocabulary, signed): (Vocabulary, bool),
) -> anyhow::Result<(u64, u64)> {
    create(path, |out| write(out, EventGenerator::new(events, seed, vocabulary)?, events, signed))
}

/// Creates a file, compressed if its name ends in .zst. Returns the number of bytes that `write`
/// reports as written, and the size on disk. Only a complete file gets its final name.
pub(crate) fn create(
    path: &Path,
    write: impl FnOnce(&mut LineOutput) -> anyhow::Result<u64>,
) -> anyhow::Result<(u64, u64)> {
    if path.exists() {
        bail!(
            "{} exists already, and can be used again. Give another name, or remove the file",
            path.display()
        );
    }
    let mut part = path.as_os_str().to_owned();
    part.push(".part");
    let part = Path::new(&part);
    let compressed = path.extension().is_some_and(|ending| ending == "zst");
    let fill = || {
        let mut out = LineOutput::create(part, compressed).with_context(|| {
            format!("{} could not be written; give a file in a writable directory", part.display())
        })?;
        let bytes =
            write(&mut out).with_context(|| format!("{} could not be made", path.display()))?;
        let disk = out
            .finish()
            .with_context(|| format!("{} could not be written to its end", part.display()))?;
        fs::rename(part, path)
            .with_context(|| format!("{} could not be renamed", part.display()))?;
        Ok((bytes, disk))
    };
    let made = fill();
    if made.is_err() {
        // The earlier error is the one to report.
        let _ = fs::remove_file(part);
    }
    made
}

/// Prints a summary of the generated file.
pub(crate) fn print_summary(
    path: &Path,
    count: u64,
    of: &str,
    (text, disk): (u64, u64),
    seed: u64,
) {
    let size = if text == disk {
        words::bytes(text)
    } else {
        format!("{} as {}", words::bytes(text), words::bytes(disk))
    };
    println!("{}: {} {of}, {size}, seed {seed}", path.display(), words::number(count));
}

/// The output file for lines.
pub(crate) enum LineOutput {
    Plain(BufWriter<File>),
    Compressed(zstd::Encoder<'static, File>),
}

impl LineOutput {
    fn create(path: &Path, compressed: bool) -> io::Result<Self> {
        let file = File::create(path)?;
        Ok(if compressed {
            Self::Compressed(zstd::Encoder::new(file, zstd::DEFAULT_COMPRESSION_LEVEL)?)
        } else {
            Self::Plain(BufWriter::with_capacity(1 << 20, file))
        })
    }

    pub(crate) fn write(&mut self, lines: &[u8]) -> io::Result<()> {
        match self {
            Self::Plain(out) => out.write_all(lines),
            Self::Compressed(out) => out.write_all(lines),
        }
    }

    /// Writes everything to disk and returns the size of the file in bytes.
    fn finish(self) -> io::Result<u64> {
        let file = match self {
            Self::Plain(out) => out.into_inner().map_err(io::IntoInnerError::into_error)?,
            Self::Compressed(out) => out.finish()?,
        };
        file.sync_all()?;
        Ok(file.metadata()?.len())
    }
}

/// Makes, signs and writes the events. Returns their bytes before compression.
fn write(
    out: &mut LineOutput,
    mut events: EventGenerator,
    count: u64,
    signed: bool,
) -> anyhow::Result<u64> {
    // Keys are cheap to copy, and the signing threads read them while more events are made.
    let people = events.people().to_vec();
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let (jobs, queue) = sync_channel::<SigningJob>(BATCHES);
    let (promises, order) = sync_channel::<SignedBatch>(BATCHES);
    let queue = Mutex::new(queue);
    let mut meter = ProgressMeter::start("signing", count);
    std::thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| sign(&queue, &people, signed));
        }
        scope.spawn(move || {
            loop {
                let batch: Vec<UnsignedEvent> = events.by_ref().take(BATCH).collect();
                let (promise, kept) = sync_channel(1);
                if batch.is_empty()
                    || promises.send(kept).is_err()
                    || jobs.send((batch, promise)).is_err()
                {
                    break;
                }
            }
        });
        let (mut bytes, mut done) = (0, 0);
        for kept in order {
            let batch = kept.recv().context("signing has stopped")??;
            out.write(&batch)?;
            bytes += batch.len() as u64;
            done = count.min(done + BATCH as u64);
            meter.at(done);
        }
        meter.finish();
        Ok(bytes)
    })
}

fn sign(queue: &Mutex<Receiver<SigningJob>>, people: &[KeyPair], signed: bool) {
    loop {
        let next = queue.lock().recv();
        let Ok((batch, promise)) = next else { return };
        let mut out = Vec::with_capacity(batch.len() * 1_200);
        let signed = batch.iter().try_for_each(|event| event.sign(people, signed, &mut out));
        // Sending fails only if the writer has failed, and the writer reports its error itself.
        let _ = promise.send(signed.map(|()| out));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use hark_codec::crypto::SignatureVerifier;
    use hark_codec::nostr::{Event, EventArena, VerifiedEvent};

    use super::*;

    fn all(count: u64, seed: u64) -> Vec<u8> {
        let events = EventGenerator::new(count, seed, Vocabulary::Few).unwrap();
        let people = events.people().to_vec();
        let mut out = Vec::new();
        for event in events {
            event.sign(&people, true, &mut out).unwrap();
        }
        out
    }

    #[test]
    fn events_are_valid_and_of_many_kinds_and_sizes() {
        let lines = all(3_000, 7);
        let (mut arena, mut verifier) = (EventArena::new(), SignatureVerifier::new(1_024));
        let mut kinds = BTreeMap::<u16, usize>::new();
        let mut longest = 0;
        for line in lines.split_inclusive(|byte| *byte == b'\n') {
            let line = line.strip_suffix(b"\n").unwrap();
            let event = Event::parse(line, &mut arena).unwrap();
            *kinds.entry(event.kind()).or_default() += 1;
            let verified = VerifiedEvent::check(event, &mut verifier).unwrap();
            // Events are in Hark's spelling, so that events from relays can be compared with them
            // byte by byte.
            let mut again = Vec::new();
            verified.event().write_json(&mut again);
            assert_eq!(again, line);
            longest = longest.max(line.len());
        }
        assert_eq!(kinds.values().sum::<usize>(), 3_000);
        for kind in [0, 1, 3, 4, 6, 7, 1_059, 1_111, 9_735, 10_002, 30_023, 31_337] {
            assert!(kinds.contains_key(&kind), "{kind}: {kinds:?}");
        }
        assert!(longest > 8_000 && longest < 65_536, "{longest}");
        assert!((700..1_400).contains(&(lines.len() / 3_000)), "{}", lines.len() / 3_000);
    }

    #[test]
    fn a_seed_is_a_file() {
        assert_eq!(all(300, 1), all(300, 1));
        assert_ne!(all(300, 1), all(300, 2));
    }
}
