//! Chooses the log files that a salvage reads.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::disk::Disk;
use crate::log;
use crate::manifest::Manifest;

/// A log file to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SalvagedLog {
    pub(super) number: u32,
    pub(super) generation: u32,
    pub(super) path: PathBuf,
    pub(super) bytes: u64,
}

/// Returns the log files to read, ascending, and the paths of missing logs. One generation of each
/// log is read: the generation that MANIFEST names or, if this file is gone, a later generation. A
/// later generation was made by a rewrite and has all live records. An earlier generation is not
/// used, because it has deleted records whose deletions may be gone. Without MANIFEST, the latest
/// generation is read.
pub(super) fn logs(
    disk: &dyn Disk,
    dir: &Path,
    manifest: Option<&Manifest>,
) -> std::io::Result<(Vec<SalvagedLog>, Vec<PathBuf>)> {
    let log_dir = dir.join("log");
    let mut found: BTreeMap<u32, BTreeMap<u32, u64>> = BTreeMap::new();
    for (name, bytes) in disk.list(&log_dir)? {
        if let Some((number, generation)) = log::parse_name(&name) {
            found.entry(number).or_default().insert(generation, bytes);
        }
    }
    let mut sources = Vec::new();
    let mut read = |number, generation, bytes| {
        let path = log::path(dir, number, generation);
        sources.push(SalvagedLog { number, generation, path, bytes });
    };
    let mut missing = Vec::new();
    let named = manifest.map(|manifest| manifest.logs.as_slice()).unwrap_or_default();
    for entry in named {
        let known = found.get(&entry.number);
        let mut usable = known.into_iter().flat_map(|known| known.range(entry.generation..));
        match usable.next() {
            Some((&generation, &bytes)) => read(entry.number, generation, bytes),
            None => missing.push(log::path(dir, entry.number, entry.generation)),
        }
    }
    // The logs that MANIFEST does not name: all logs if MANIFEST is missing, or the later logs if
    // MANIFEST is old.
    let last = named.last().map_or(0, |entry| entry.number);
    for (&number, generations) in found.range(last.saturating_add(1)..) {
        if let Some((&generation, &bytes)) = generations.last_key_value() {
            read(number, generation, bytes);
        }
    }
    Ok((sources, missing))
}
