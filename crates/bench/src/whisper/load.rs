//! Loads the compared stores, and removes them after the run.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context as _, ensure};

use super::args::WhisperBenchArgs;
use super::envelopes::EnvelopeSource;
use super::http;
use super::mailserver::{self, TableAsker};
use super::questions::QuestionForm;
use super::store::{EnvelopeStore, EnvelopeStoreOpener};
use super::ways::AnswerWay;
use crate::meter::ProgressMeter;
use crate::report::BenchReport;
use crate::sql::server::SqlServer;
use crate::words::number;

/// The databases that this bench creates on the measured server.
const HARK: &str = "hark_bench_whisper";
const MAIL_SERVER: &str = "hark_bench_mailserver";
/// Number of envelopes put into a store at once.
const BATCH: usize = 4_096;

/// A temporary directory. Dropping the value removes the directory.
struct TemporaryDirectory(PathBuf);

impl Drop for TemporaryDirectory {
    fn drop(&mut self) {
        // Files that cannot be removed stay among other temporary files.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The stores of a run, loaded with the same envelopes.
pub(super) struct LoadedStores<'a> {
    args: &'a WhisperBenchArgs,
    files: Box<dyn EnvelopeStore>,
    // The directory is removed after its store is closed.
    _temporary: Option<TemporaryDirectory>,
    database: Option<Box<dyn EnvelopeStore>>,
    server: Option<SqlServer>,
}

impl<'a> LoadedStores<'a> {
    /// Opens the stores and loads them, unless `--again` reuses loaded stores. Adds the time of
    /// each load to the report.
    pub(super) fn open(
        args: &'a WhisperBenchArgs,
        open: EnvelopeStoreOpener<'_>,
        report: &mut BenchReport,
    ) -> anyhow::Result<Self> {
        let directory = args.data.clone().unwrap_or_else(|| {
            std::env::temp_dir().join(format!("hark-bench-whisper-{}", std::process::id()))
        });
        let temporary = args.data.is_none().then(|| TemporaryDirectory(directory.clone()));
        let server = args.server.as_deref().map(SqlServer::new).transpose()?;
        let address = directory.to_str().context("the directory's name is not text")?;
        let files = open(address)?;
        ensure!(
            args.again == files.times_s().is_some(),
            "{address} {}",
            if args.again { "has no envelopes: load it without --again" } else { "is not empty" }
        );
        if let Some(server) = server.as_ref().filter(|_| !args.again) {
            server.create(HARK, args.replace)?;
            server.create(MAIL_SERVER, args.replace)?;
        }
        let url = args.server.as_deref().map(|url| SqlServer::url_of(url, HARK));
        let mut stores = Self { args, files, _temporary: temporary, database: None, server };
        match stores.load(url.as_deref(), open, report) {
            Ok(()) => Ok(stores),
            Err(error) => {
                // The first error is the one to report.
                let _ = stores.close();
                Err(error)
            }
        }
    }

    fn load(
        &mut self,
        url: Option<&str>,
        open: EnvelopeStoreOpener<'_>,
        report: &mut BenchReport,
    ) -> anyhow::Result<()> {
        let args = self.args;
        match (&args.file, args.again) {
            (_, true) => report.setting("loaded", "before"),
            (Some(file), _) => report.setting("file", file.display().to_string()),
            (None, _) => {
                report.setting("envelopes", args.made.envelopes);
                report.setting("seed", args.made.seed);
            }
        }
        if !args.again {
            put_all(args, &*self.files, "files", "load_files_per_s", report)?;
        }
        let Some(url) = url else { return Ok(()) };
        let database = self.database.insert(open(url)?);
        let Some(server) = self.server.as_ref().filter(|_| !args.again) else { return Ok(()) };
        put_all(args, &**database, "PostgreSQL", "load_postgresql_per_s", report)?;
        server.run_maintenance(HARK)?;
        let (runtime, client) = server.connect(MAIL_SERVER)?;
        let (start, mut envelopes) = (Instant::now(), EnvelopeSource::open(args)?);
        let count = runtime.block_on(mailserver::fill(&client, &mut envelopes))?;
        note_load("the mail server's table", "load_table_per_s", count, start, report);
        server.run_maintenance(MAIL_SERVER)
    }

    /// The store in files.
    pub(super) fn files(&self) -> &dyn EnvelopeStore {
        &*self.files
    }

    /// Returns the ways of answering with these stores.
    pub(super) fn ways(&self) -> anyhow::Result<Vec<AnswerWay<'_>>> {
        let mut ways = Vec::from(AnswerWay::own(
            ["Hark in files, topics", "Hark in files, bloom"],
            self.files(),
        ));
        ways.extend(AnswerWay::scans(self.files()));
        if let Some(url) = &self.args.url {
            ways.extend(http::ways(url)?);
        }
        if let (Some(database), Some(server)) = (&self.database, &self.server) {
            let names = ["Hark in PostgreSQL, topics", "Hark in PostgreSQL, bloom"];
            ways.extend(AnswerWay::own(names, &**database));
            let table = |name, form| AnswerWay {
                name,
                form,
                is_own: false,
                open: Box::new(move || {
                    let (runtime, client) = server.connect(MAIL_SERVER)?;
                    Ok(Box::new(TableAsker { runtime, client }))
                }),
            };
            ways.push(table("mail server's table, topics", QuestionForm::Topics));
            ways.push(table("mail server's table, bits", QuestionForm::Bloom));
        }
        Ok(ways)
    }

    /// Closes the stores, and removes the databases unless `--keep` is given.
    pub(super) fn close(self) -> anyhow::Result<()> {
        let Self { args, files, _temporary, database, server } = self;
        drop((database, files));
        if let Some(server) = server.filter(|_| !args.keep && !args.again) {
            server.remove(HARK)?;
            server.remove(MAIL_SERVER)?;
        }
        Ok(())
    }
}

/// Puts all envelopes into a store of Hark and waits for its maintenance.
fn put_all(
    args: &WhisperBenchArgs,
    store: &dyn EnvelopeStore,
    what: &str,
    key: &'static str,
    report: &mut BenchReport,
) -> anyhow::Result<()> {
    let (start, mut envelopes) = (Instant::now(), EnvelopeSource::open(args)?);
    let mut meter = ProgressMeter::start(&format!("Hark in {what}"), envelopes.count());
    let (mut batch, mut rlp, mut count) = (Vec::with_capacity(BATCH), Vec::new(), 0);
    let mut more = true;
    while more {
        more = envelopes.next(&mut rlp)?;
        if more {
            batch.push(rlp.clone());
            count += 1;
        }
        if batch.len() == BATCH || !more {
            store.put(&batch)?;
            batch.clear();
            meter.at(count);
        }
    }
    meter.finish();
    store.wait_for_maintenance()?;
    note_load(&format!("Hark in {what}"), key, count, start, report);
    Ok(())
}

/// Adds the speed of a load since `start`, including maintenance, to the report.
fn note_load(what: &str, key: &'static str, count: u64, start: Instant, report: &mut BenchReport) {
    let seconds = start.elapsed().as_secs_f64();
    let per_s = (count as f64 / seconds.max(1e-9)).round();
    report.setting(key, per_s);
    report.note(format!(
        "{what}: {} envelopes loaded in {seconds:.1} s, {} a second, maintenance and indices \
         included.",
        number(count),
        number(per_s as u64)
    ));
}
