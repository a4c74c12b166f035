//! `hark bench gen`: writes the events of a seed to a file. One thread makes them up, all cores sign,
//! one writes, in order; a few batches are under way and no more.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write as _};
use std::path::Path;
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context as _, bail};
use hark_codec::crypto::Keys;

use crate::cli::GenArgs;
use crate::events::{Events, Unsigned};
use crate::meter::Meter;
use crate::words;

/// Events that are signed in one go.
const BATCH: usize = 500;
/// Batches under way.
const BATCHES: usize = 16;

/// A batch, and where it goes once it is signed.
type Job = (Vec<Unsigned>, SyncSender<anyhow::Result<Vec<u8>>>);
/// Batches to be, in order.
type Promise = Receiver<anyhow::Result<Vec<u8>>>;

pub(crate) fn run(args: &GenArgs) -> anyhow::Result<ExitCode> {
    if args.out.exists() {
        bail!(
            "{} is there already; events are made once and used often. Give another name, or remove it",
            args.out.display()
        );
    }
    // Only a whole file gets the name.
    let mut part = args.out.as_os_str().to_owned();
    part.push(".part");
    let part = Path::new(&part);
    let compressed = args.out.extension().is_some_and(|ending| ending == "zst");
    let bytes = write(part, compressed, args).and_then(|bytes| {
        fs::rename(part, &args.out)
            .with_context(|| format!("{} could not be renamed", part.display()))?;
        Ok(bytes)
    });
    if bytes.is_err() {
        // The failure before is what counts.
        let _ = fs::remove_file(part);
    }
    println!(
        "{}: {} events, {}, seed {}",
        args.out.display(),
        words::number(args.events),
        match bytes? {
            (json, disk) if json == disk => words::bytes(json),
            (json, disk) => format!("{} as {}", words::bytes(json), words::bytes(disk)),
        },
        args.seed
    );
    Ok(ExitCode::SUCCESS)
}

/// Where the events go.
enum Out {
    Plain(BufWriter<File>),
    Compressed(zstd::Encoder<'static, File>),
}

impl Out {
    fn write(&mut self, events: &[u8]) -> io::Result<()> {
        match self {
            Self::Plain(out) => out.write_all(events),
            Self::Compressed(out) => out.write_all(events),
        }
    }

    /// Returns once all is on the disk; bytes of the file.
    fn finish(self) -> io::Result<u64> {
        let file = match self {
            Self::Plain(out) => out.into_inner().map_err(io::IntoInnerError::into_error)?,
            Self::Compressed(out) => out.finish()?,
        };
        file.sync_all()?;
        Ok(file.metadata()?.len())
    }
}

/// Gives the bytes of the events, and those on the disk.
fn write(path: &Path, compressed: bool, args: &GenArgs) -> anyhow::Result<(u64, u64)> {
    let (count, signed) = (args.events, !args.unsigned);
    let create = || -> io::Result<Out> {
        let file = File::create(path)?;
        Ok(if compressed {
            Out::Compressed(zstd::Encoder::new(file, zstd::DEFAULT_COMPRESSION_LEVEL)?)
        } else {
            Out::Plain(BufWriter::with_capacity(1 << 20, file))
        })
    };
    let mut out = create().with_context(|| {
        format!("{} could not be written; give a file in a directory of yours", path.display())
    })?;
    let mut events = Events::new(count, args.seed)?;
    // Keys are cheap to copy, and the signers read theirs while more events are made up.
    let people = events.people().to_vec();
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let (jobs, queue) = sync_channel::<Job>(BATCHES);
    let (promises, order) = sync_channel::<Promise>(BATCHES);
    let queue = Mutex::new(queue);
    let mut meter = Meter::start("signing", count);
    std::thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| sign(&queue, &people, signed));
        }
        scope.spawn(move || {
            loop {
                let batch: Vec<Unsigned> = events.by_ref().take(BATCH).collect();
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
            out.write(&batch)
                .with_context(|| format!("{} could not be written", path.display()))?;
            bytes += batch.len() as u64;
            done = count.min(done + BATCH as u64);
            meter.at(done);
        }
        let disk = out
            .finish()
            .with_context(|| format!("{} could not be written to its end", path.display()))?;
        meter.finish();
        Ok((bytes, disk))
    })
}

fn sign(queue: &Mutex<Receiver<Job>>, people: &[Keys], signed: bool) {
    loop {
        let next = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok((batch, promise)) = next else { return };
        let mut out = Vec::with_capacity(batch.len() * 1_200);
        let signed = batch.iter().try_for_each(|event| event.sign(people, signed, &mut out));
        // Whoever waited for it has failed and said so.
        let _ = promise.send(signed.map(|()| out));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use hark_codec::crypto::Verifier;
    use hark_codec::nostr::{Arena, Event, VerifiedEvent};

    use super::*;

    fn all(count: u64, seed: u64) -> Vec<u8> {
        let events = Events::new(count, seed).unwrap();
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
        let (mut arena, mut verifier) = (Arena::new(), Verifier::new(1_024));
        let mut kinds = BTreeMap::<u16, usize>::new();
        let mut longest = 0;
        for line in lines.split_inclusive(|byte| *byte == b'\n') {
            let line = line.strip_suffix(b"\n").unwrap();
            let event = Event::parse(line, &mut arena).unwrap();
            *kinds.entry(event.kind()).or_default() += 1;
            let verified = VerifiedEvent::check(event, &mut verifier).unwrap();
            // In our own spelling, so that what relays send back can be compared.
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
