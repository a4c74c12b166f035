//! `hark import`: one thread reads, one thread per core checks, and the main thread writes in the
//! order of the lines. The number of chunks in progress is bounded.

mod begun;
mod check;
mod cost;
mod json;
mod message;
mod source;
mod tally;

use std::io::{self, IsTerminal as _};
use std::path::Path;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use clap::Args;
use hark_archive::{Store, vital};
use hark_networks::{Network, ReadOptions};
use parking_lot::Mutex;

use self::begun::LazyWriter;
use self::check::{CheckOptions, CheckWorker, CheckedChunk};
use self::cost::{ImportCost, PeakMemory};
use self::source::{LineChunk, LineSource};
use self::tally::ImportTally;
use crate::interrupt;
use crate::location::ArchiveLocation;
use crate::print::{self, CommandProgress, CountedUnit};
use crate::when;
use crate::writer::WriterHandle;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  hark import events.jsonl more.jsonl.zst
  strfry export | hark import --trusted
  hark import --json dump.jsonl.gz > report.json

A file has one event a line, or any other JSON that contains events: events over several lines, in
arrays, in the messages of a relay or a client ([\"EVENT\",{...}]), or in an object around an array
({\"events\":[...]}). Every id and signature is checked, on all cores. gzip and zstd are recognised by
content, not by name. To continue an interrupted import, run it again: events that are stored
already are skipped before their signatures are checked. Refused events are counted by reason, and
do not make the import fail.")]
pub(crate) struct ImportArgs {
    /// Files to read, in this order; `-` is stdin
    #[arg(value_name = "FILE", default_value = "-")]
    pub(crate) files: Vec<PathBuf>,
    /// Skip the check of ids and signatures, for exports of an archive you trust
    #[arg(long)]
    pub(crate) trusted: bool,
    /// Print the report as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Number of chunks queued for each worker, so that no worker waits for the reader.
const CHUNKS_PER_WORKER: usize = 4;
/// A batch ends once its records have at least this number of bytes.
const BATCH_BYTES: usize = 8 << 20;
/// Time without input from a pipe after which the records received so far are written.
const PIPE_PAUSE: Duration = Duration::from_millis(20);
/// How often an idle worker checks whether the import has ended.
const LOOK_UP_EVERY: Duration = Duration::from_millis(100);

pub(crate) fn run(args: &ImportArgs, location: &ArchiveLocation) -> anyhow::Result<ExitCode> {
    let stop = interrupt::flag()?;
    let mut writer = LazyWriter::new(location)?;
    let trusted = args.trusted && location.network.lines().are_signed();
    // A lookup of known ids only saves checks, and a trusted import makes no checks.
    let opened = writer.opened().filter(|_| !args.trusted);
    let known = opened.and_then(|writer| known_ids(writer, location));
    let options = CheckOptions {
        store: known.as_deref(),
        network: location.network,
        read: ReadOptions {
            record_bytes_max: location.shelf_config().record_bytes_max,
            trusted,
            now_s: when::now_s(),
            own_urls: location.config.info.urls().collect(),
        },
    };
    if trusted {
        print::note!(
            "ids and signatures are not checked (--trusted): everything in these files is accepted"
        );
    }
    let started = Instant::now();
    let mut total = ImportTally::default();
    let mut memory = PeakMemory::default();
    let mut failed = None;
    for path in &args.files {
        if path.as_os_str() == "-" && io::stdin().is_terminal() {
            print::note!(
                "hark: reading from the terminal, one record a line, until Ctrl-D; Ctrl-C stops. Files \
                 are read by `hark import FILE`"
            );
        }
        let mut tally = ImportTally::default();
        let batch_records = location.facts().batch_records;
        let done =
            file(path, &options, (&mut writer, batch_records), &mut tally, &mut memory, &stop);
        total.add_file(path, tally);
        if let Err(error) = done {
            failed = Some(error);
        }
        if failed.is_some() || stop.load(Ordering::Relaxed) {
            break;
        }
    }
    let stopped = stop.load(Ordering::Relaxed);
    let complete = failed.is_none() && !stopped;
    let store = writer.opened().and_then(|writer| writer.own_store());
    let cost = store.map(|store| ImportCost::of(&store.stats().maintenance, &memory));
    if args.json {
        let mut report = total.to_json(location.network, started.elapsed(), trusted, complete);
        report["cost"] = cost.map(|cost| cost.to_json()).into();
        print::line(&report.to_string())?;
    } else {
        print::line(&total.to_text(location.network, started.elapsed(), trusted))?;
        if let Some(cost) = cost {
            print::line(&cost.to_text(total.stored))?;
        }
    }
    match writer.opened() {
        Some(writer) => writer.report_held(),
        None if complete => print::note!(
            "hark: there was nothing to store, so no archive was created in {}",
            location.data.display()
        ),
        None => {}
    }
    if let Some(error) = failed {
        return Err(error);
    }
    if stopped {
        print::note!(
            "hark: stopped; what is counted as stored is safe. Run the import again to continue"
        );
        return Ok(ExitCode::from(interrupt::INTERRUPTED));
    }
    if total.is_foreign() {
        anyhow::bail!(
            "not one line could be read as a record of this network ({}); nothing was stored. \
             Pass another file, or another --network",
            location.network.records()
        );
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the store in which known ids are looked up. The lookup is an optimisation, so a store
/// that cannot be opened is not an error. Returns `None` for a remote store, which looks ids up in
/// batches while records are stored.
fn known_ids(writer: &WriterHandle, location: &ArchiveLocation) -> Option<Arc<dyn Store>> {
    if location.facts().is_remote { None } else { location.read_beside(writer).ok() }
}

/// A chunk, and the channel for its result.
type CheckJob = (LineChunk, SyncSender<CheckedChunk>);

fn file(
    path: &Path,
    options: &CheckOptions<'_>,
    (writer, batch_records): (&mut LazyWriter<'_>, usize),
    tally: &mut ImportTally,
    memory: &mut PeakMemory,
    stop: &AtomicBool,
) -> anyhow::Result<()> {
    // Room for white space around a record, and for base64, which takes four bytes for three.
    let line_bytes_max = options.read.record_bytes_max.saturating_mul(4);
    let source = LineSource::open(path, line_bytes_max).with_context(|| {
        format!("{} could not be opened; the files before it are done", path.display())
    })?;
    let workers = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let mut intake = ImportWriter {
        writer,
        network: options.network,
        batch_records,
        tally,
        memory,
        batch: ImportBatch::default(),
        meter: CommandProgress::start(
            &path.display().to_string(),
            source.size.unwrap_or(0),
            CountedUnit::Bytes,
        ),
        size: source.size.unwrap_or(0),
        started: Instant::now(),
    };
    // Set when no more results are accepted. The reader is not joined, since it may be waiting for
    // a pipe.
    let halt = Arc::new(AtomicBool::new(false));
    let (jobs, queue) = sync_channel::<CheckJob>(workers * CHUNKS_PER_WORKER);
    let (promises, order) = sync_channel(workers * CHUNKS_PER_WORKER);
    // Receives the result of reading the whole file.
    let (ended, end) = sync_channel(1);
    vital::spawn("hark-reader", {
        let halt = Arc::clone(&halt);
        move || {
            // The receiver is gone if the import was stopped.
            let _ = ended.send(read(source, &jobs, &promises, &halt));
        }
    })?;
    let queue = Mutex::new(queue);
    let written = std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| vital::run("a thread that checks", || work(&queue, options, &halt)));
        }
        // The end of this scope joins the workers, which may run until `halt` is set.
        let written = vital::run("the import", || intake.write_results(&order, stop));
        halt.store(true, Ordering::Relaxed);
        written
    });
    intake.meter.finish();
    written?;
    if stop.load(Ordering::Relaxed) {
        return Ok(());
    }
    let ended = end.recv().unwrap_or_else(|_| Err(io::Error::other("the reader failed")));
    if let Err(error) = &ended
        && error.kind() == io::ErrorKind::Unsupported
    {
        anyhow::bail!("{}: {error}; nothing of this file was stored", path.display());
    }
    ended.with_context(|| {
        format!(
            "{} could not be read to its end; what came before is stored. Repair the file and run \
             the import again: stored records are skipped",
            path.display()
        )
    })
}

/// Runs the reader. The reader sends the receiver of each chunk's result to the writer, and then
/// the chunk to the workers, so the writer gets the results in the order of the chunks.
fn read(
    mut source: LineSource,
    jobs: &SyncSender<CheckJob>,
    promises: &SyncSender<Receiver<CheckedChunk>>,
    halt: &AtomicBool,
) -> io::Result<()> {
    while !halt.load(Ordering::Relaxed)
        && let Some(chunk) = source.next()?
    {
        let (answer, promise) = sync_channel(1);
        if promises.send(promise).is_err() || jobs.send((chunk, answer)).is_err() {
            break;
        }
    }
    Ok(())
}

fn work(queue: &Mutex<Receiver<CheckJob>>, options: &CheckOptions<'_>, halt: &AtomicBool) {
    let mut worker = CheckWorker::new(options);
    while !halt.load(Ordering::Relaxed) {
        let job = queue.lock().recv_timeout(LOOK_UP_EVERY);
        match job {
            Ok((chunk, answer)) => {
                // The receiver is gone if the import was stopped.
                let _ = answer.send(worker.check(&chunk));
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

/// Records that wait to be written, and the line of each record.
#[derive(Default)]
struct ImportBatch {
    records: Vec<Box<[u8]>>,
    lines: Vec<u64>,
}

impl ImportBatch {
    /// Returns the number of records in the next full batch, which has `records_max` records or at
    /// least [`BATCH_BYTES`]; `None` if too few records wait.
    fn full(&self, records_max: usize) -> Option<usize> {
        let mut bytes = 0;
        let is_last = |(at, size): (usize, usize)| {
            bytes += size;
            at + 1 == records_max || bytes >= BATCH_BYTES
        };
        let sizes = self.records.iter().map(|record| record.len());
        sizes.enumerate().position(is_last).map(|last| last + 1)
    }
}

/// The state of the thread that writes the records.
struct ImportWriter<'a, 'l> {
    writer: &'a mut LazyWriter<'l>,
    network: &'static dyn Network,
    batch_records: usize,
    tally: &'a mut ImportTally,
    memory: &'a mut PeakMemory,
    batch: ImportBatch,
    meter: CommandProgress,
    size: u64,
    started: Instant,
}

impl ImportWriter<'_, '_> {
    /// Writes results in order until no more results follow or `stop` is set.
    fn write_results(
        &mut self,
        order: &Receiver<Receiver<CheckedChunk>>,
        stop: &AtomicBool,
    ) -> anyhow::Result<()> {
        loop {
            let promise = match order.recv_timeout(PIPE_PAUSE) {
                Ok(promise) => promise,
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) if stop.load(Ordering::Relaxed) => break,
                Err(RecvTimeoutError::Timeout) => {
                    // The process at the other end of the pipe may send nothing more until these
                    // records are stored.
                    self.write_all()?;
                    continue;
                }
            };
            let Ok(checked) = promise.recv() else {
                anyhow::bail!("a thread that checks events failed; run the import again")
            };
            self.add(checked);
            while let Some(size) = self.batch.full(self.batch_records) {
                self.write(size)?;
            }
            if stop.load(Ordering::Relaxed) {
                break;
            }
        }
        self.write_all()
    }

    fn add(&mut self, checked: CheckedChunk) {
        let first_line = self.tally.lines;
        self.batch.records.extend(checked.records);
        self.batch.lines.extend(checked.lines.iter().map(|line| first_line + line));
        self.tally.append(checked.tally);
        self.memory.measure_if_due();
        let rate = self.tally.records as f64 / self.started.elapsed().as_secs_f64().max(0.001);
        let words = format!(
            "{}, {}/s",
            print::count(self.tally.records, self.network.record()),
            print::number(rate as u64)
        );
        self.meter.at(checked.read_to, self.size, &words);
    }

    /// Writes the waiting records, which are fewer than a full batch.
    fn write_all(&mut self) -> anyhow::Result<()> {
        let size = self.batch.records.len();
        if size > 0 { self.write(size) } else { Ok(()) }
    }

    /// Writes the first `size` waiting records as one batch.
    fn write(&mut self, size: usize) -> anyhow::Result<()> {
        let Self { writer, tally, batch, .. } = self;
        let outcomes = writer.put(batch.records.drain(..size).collect())?;
        let mut failed = None;
        for (line, outcome) in batch.lines.drain(..size).zip(outcomes) {
            match outcome {
                Ok(outcome) => tally.outcome(outcome, line),
                Err(words) => failed = Some(words),
            }
        }
        if let Some(words) = failed {
            anyhow::bail!(
                "the server could not store what it was given: {words}. What is counted as \
                 stored is safe; look at the server's log, then run the import again"
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 1,024 records of a Waku node or of a relay with long events have gigabytes.
    #[test]
    fn a_batch_is_bounded_in_records_and_in_bytes() {
        let full = |sizes: &[usize]| {
            let records = sizes.iter().map(|size| vec![0; *size].into()).collect();
            ImportBatch { records, lines: Vec::new() }.full(4)
        };
        let half = BATCH_BYTES / 2;
        for (sizes, expected) in [
            (&[][..], None),
            (&[1, 1, 1], None),
            (&[1, 1, 1, 1], Some(4)),
            (&[1, 1, 1, 1, 1], Some(4)),
            (&[half, half - 1], None),
            (&[half, half, 1], Some(2)),
            (&[1, 2 * half, 1, 1], Some(2)),
        ] {
            assert_eq!(full(sizes), expected, "{sizes:?}");
        }
    }
}
