//! `hark bench gen`: writes the events of a seed to a file. One thread makes the events, all cores
//! sign them, and one thread writes them in order. Only a few batches are in progress at a time. An
//! interrupted run continues at its last checkpoint.

use std::fs::{self, File};
use std::io::{self, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use anyhow::{Context as _, bail};
use hark_codec::crypto::KeyPair;
use parking_lot::Mutex;

use crate::args::GenArgs;
use crate::events::{EventGenerator, UnsignedEvent};
use crate::meter::ProgressMeter;
use crate::progress::{FileProgress, WrittenPart};
use crate::text::Vocabulary;
use crate::words;

/// Number of events of a batch, which one thread signs.
const BATCH: usize = 500;
/// Number of events between two checkpoints, from which an interrupted run continues.
const CHECKPOINT: u64 = 50_000;
/// Number of bytes that are written to the file at once.
const BUFFER_BYTES: usize = 1 << 20;
/// Maximum number of batches in a queue.
const BATCHES: usize = 16;

/// A batch, and the channel to which its signed bytes are sent.
type SigningJob = (Vec<UnsignedEvent>, SyncSender<anyhow::Result<Vec<u8>>>);
/// The channel from which the writer receives a signed batch.
type SignedBatch = Receiver<anyhow::Result<Vec<u8>>>;

pub(crate) fn run(args: &GenArgs) -> anyhow::Result<ExitCode> {
    let vocabulary = if args.natural { Vocabulary::Natural } else { Vocabulary::Few };
    let events = EventGenerator::new(args.events, args.seed, vocabulary)?;
    let events = if args.small { events.small() } else { events };
    let flags = [args.unsigned, args.natural, args.small];
    let flags = format!("{} {} {flags:?}", args.events, args.seed);
    let bytes = write_events(&args.out, flags, events, (args.events, !args.unsigned))?;
    print_summary(&args.out, args.events, "events", bytes, args.seed);
    Ok(ExitCode::SUCCESS)
}

/// Writes the events of a seed to a file, with signatures if `signed`.
pub(crate) fn write_file(
    path: &Path,
    count: u64,
    seed: u64,
    (vocabulary, signed): (Vocabulary, bool),
) -> anyhow::Result<()> {
    let flags = format!("{count} {seed} {vocabulary:?} {signed}");
    let events = EventGenerator::new(count, seed, vocabulary)?;
    write_events(path, flags, events, (count, signed)).map(|_| ())
}

/// Writes events to a file, or continues an incomplete file of an earlier run with the same flags.
/// Returns their bytes, and the size of the file on disk.
fn write_events(
    path: &Path,
    flags: String,
    events: EventGenerator,
    (count, signed): (u64, bool),
) -> anyhow::Result<(u64, u64)> {
    let part = part_of(path)?;
    let progress = FileProgress::new(&part, flags);
    let written = progress.read(&part);
    let make = || {
        let mut out = LineOutput::open(&part, is_compressed(path), written.disk_bytes)?;
        let bytes = write(&mut out, events, (count, signed), &progress, written)?;
        let disk = out.finish()?;
        fs::rename(&part, path)?;
        anyhow::Ok((bytes, disk))
    };
    let made = make().with_context(|| {
        format!("{} could not be made; the same command continues it", path.display())
    })?;
    progress.remove();
    Ok(made)
}

/// Returns the name of a file while it is incomplete. Fails if the file exists.
fn part_of(path: &Path) -> anyhow::Result<PathBuf> {
    if path.exists() {
        bail!(
            "{} exists already, and can be used again. Give another name, or remove the file",
            path.display()
        );
    }
    let mut part = path.as_os_str().to_owned();
    part.push(".part");
    Ok(part.into())
}

fn is_compressed(path: &Path) -> bool {
    path.extension().is_some_and(|ending| ending == "zst")
}

/// Creates a file, compressed if its name ends in .zst. Returns the number of bytes that `write`
/// reports as written, and the size on disk. Only a complete file gets its final name.
pub(crate) fn create(
    path: &Path,
    write: impl FnOnce(&mut LineOutput) -> anyhow::Result<u64>,
) -> anyhow::Result<(u64, u64)> {
    let part = part_of(path)?;
    let fill = || {
        let mut out = LineOutput::open(&part, is_compressed(path), 0).with_context(|| {
            format!("{} could not be written; give a file in a writable directory", part.display())
        })?;
        let bytes =
            write(&mut out).with_context(|| format!("{} could not be made", path.display()))?;
        let disk = out
            .finish()
            .with_context(|| format!("{} could not be written to its end", part.display()))?;
        fs::rename(&part, path)
            .with_context(|| format!("{} could not be renamed", part.display()))?;
        Ok((bytes, disk))
    };
    let made = fill();
    if made.is_err() {
        // The earlier error is the one to report.
        let _ = fs::remove_file(&part);
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
pub(crate) struct LineOutput {
    file: File,
    /// The frame that is being written. `None` for a file that is not compressed.
    frame: Option<zstd::Encoder<'static, Vec<u8>>>,
    /// Bytes that are to be written to the file.
    pending: Vec<u8>,
}

impl LineOutput {
    /// Opens a file and removes everything after its first `from` bytes.
    fn open(path: &Path, compressed: bool, from: u64) -> io::Result<Self> {
        let mut file = File::options().write(true).create(true).truncate(from == 0).open(path)?;
        file.set_len(from)?;
        file.seek(SeekFrom::End(0))?;
        let frame = if compressed { Some(frame()?) } else { None };
        Ok(Self { file, frame, pending: Vec::new() })
    }

    pub(crate) fn write(&mut self, lines: &[u8]) -> io::Result<()> {
        match &mut self.frame {
            Some(frame) => frame.write_all(lines)?,
            None => self.pending.extend_from_slice(lines),
        }
        let buffered = self.frame.as_ref().map_or(self.pending.len(), |of| of.get_ref().len());
        if buffered < BUFFER_BYTES {
            return Ok(());
        }
        if let Some(frame) = &mut self.frame {
            self.pending.append(frame.get_mut());
        }
        self.flush()
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.write_all(&self.pending)?;
        self.pending.clear();
        Ok(())
    }

    /// Writes everything to disk and returns the size of the file in bytes. A compressed file ends
    /// its frame, so that a decoder can read the file up to here.
    fn checkpoint(&mut self) -> io::Result<u64> {
        if let Some(ended) = self.frame.take() {
            self.pending.append(&mut ended.finish()?);
            self.frame = Some(frame()?);
        }
        self.flush()?;
        self.file.sync_all()?;
        Ok(self.file.metadata()?.len())
    }

    /// Writes everything to disk and returns the size of the file in bytes.
    fn finish(mut self) -> io::Result<u64> {
        if let Some(ended) = self.frame.take() {
            self.pending.append(&mut ended.finish()?);
        }
        self.checkpoint()
    }
}

fn frame() -> io::Result<zstd::Encoder<'static, Vec<u8>>> {
    zstd::Encoder::new(Vec::new(), zstd::DEFAULT_COMPRESSION_LEVEL)
}

/// Makes, signs and writes the events after those that are already written. Returns the bytes of all
/// events before compression.
fn write(
    out: &mut LineOutput,
    mut events: EventGenerator,
    (count, signed): (u64, bool),
    progress: &FileProgress,
    mut written: WrittenPart,
) -> anyhow::Result<u64> {
    // Later events refer to earlier ones, so the written events are made again, but not signed.
    if let Some(last) = written.events.checked_sub(1) {
        events.nth(usize::try_from(last)?);
    }
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
        for kept in order {
            let batch = kept.recv().context("signing has stopped")??;
            out.write(&batch)?;
            written.text_bytes += batch.len() as u64;
            written.events = count.min(written.events + BATCH as u64);
            meter.at(written.events);
            if written.events.is_multiple_of(CHECKPOINT) {
                written.disk_bytes = out.checkpoint()?;
                progress.save(written)?;
            }
        }
        meter.finish();
        Ok(written.text_bytes)
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
