//! Running a check.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use super::faults::ShelfCheck;
use super::report::CheckReport;
use crate::engine::open_error::ShelfOpenError;
use crate::engine::shelf_dir::existing_manifest;
use crate::manifest::Manifest;
use crate::options::{EmbeddedOptions, JobProgress, OnProgress};
use crate::repair::from_logs::DeletionMap;
use crate::segment::open::open_segment;
use crate::segment::opened::Segment;
use crate::term::TermHasher;

/// Maximum number of times that a check begins again because the maintenance of a running server
/// has removed files.
const TRIES: usize = 200;

/// Checks a shelf. A server may have it open: if the server replaces files during the check, the
/// check begins again.
///
/// ```
/// use hark_archive::effects::KeepAll;
/// use hark_archive::{RecordHeader, Store, Write};
/// use hark_store_embedded::{EmbeddedOptions, EmbeddedStore, check};
///
/// let dir = std::env::temp_dir().join(format!("hark-doc-check-{}", std::process::id()));
/// let options = EmbeddedOptions::default();
/// let store = EmbeddedStore::open(&dir, Box::new(KeepAll), options.clone())?;
/// let head = RecordHeader { id: [1; 32], time: 7, author: None, kind: 0, expires: None };
/// let mut bytes = Vec::new();
/// hark_codec::record::write(&mut bytes, &head, b"the message", std::iter::empty());
/// store.commit(&[Write::Put(bytes.into())])?;
/// let report = check(&dir, &options, &mut |_| {})?;
/// assert_eq!((report.records, report.faults.len()), (1, 0));
/// drop(store);
/// std::fs::remove_dir_all(&dir)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn check(
    dir: &Path,
    options: &EmbeddedOptions,
    progress: OnProgress<'_>,
) -> Result<CheckReport, ShelfOpenError> {
    let read = || existing_manifest(&*options.disk, dir);
    let mut manifest = read()?;
    for _ in 1..TRIES {
        let report = check_files(dir, options, manifest.clone(), progress);
        let now = read()?;
        if report.faults.is_empty() || now == manifest {
            return Ok(report);
        }
        manifest = now;
    }
    Ok(check_files(dir, options, manifest, progress))
}

fn check_files(
    dir: &Path,
    options: &EmbeddedOptions,
    manifest: Manifest,
    progress: OnProgress<'_>,
) -> CheckReport {
    let disk = &*options.disk;
    let terms = TermHasher::new(&manifest.secret, options);
    let deletes = DeletionMap::none();
    let (report, live) = (CheckReport::default(), HashMap::new());
    let mut check = ShelfCheck { disk, dir, manifest, terms, deletes, report, live };
    // All segments are opened and all logs are mapped at the start, because an open file can still
    // be read after a server's maintenance has removed the file from the directory.
    let entries = check.manifest.segments.clone();
    let opened: Vec<Result<Segment, ShelfOpenError>> = entries
        .iter()
        .map(|entry| {
            open_segment(
                (disk, dir),
                entry,
                &check.manifest,
                check.terms.clone(),
                None,
                &Arc::default(),
            )
        })
        .collect();
    let logs = check.map_logs();
    let total = (check.manifest.logs.len() * 2 + check.manifest.segments.len()) as u64;
    let mut done = 0;
    let mut step = |what| {
        progress(JobProgress { what, done, total });
        done += 1;
    };
    for (at, mapped) in logs.iter().enumerate() {
        step("reading deletions");
        check.read_deletes(at, mapped);
    }
    for (at, mapped) in logs.into_iter().enumerate() {
        step("checking logs");
        check.log(at, mapped);
    }
    for (entry, opened) in entries.iter().zip(opened) {
        step("checking segments");
        check.segment(entry, opened);
    }
    progress(JobProgress { what: "checked", done: total, total });
    check.report
}
