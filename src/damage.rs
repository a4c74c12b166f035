//! Reports records that a command could not read.

use std::process::ExitCode;

use hark_archive::Store;

use crate::location::ArchiveLocation;
use crate::print;

/// Returns the exit code of a command that has opened and read `store`. If records could not be
/// read, prints their number and advice. `effect` describes how the missing records affect the
/// command's result.
pub(crate) fn report(store: &dyn Store, location: &ArchiveLocation, effect: &str) -> ExitCode {
    report_count(store.stats().damaged, location, effect)
}

/// Like [`report`], for a known number of damaged records.
pub(crate) fn report_count(damaged: u64, location: &ArchiveLocation, effect: &str) -> ExitCode {
    if damaged == 0 {
        return ExitCode::SUCCESS;
    }
    print::note!(
        "hark: {} could not be read: {}. {effect}. `hark check` names the files; restore them from \
         a backup, or copy all others into a new archive with `hark salvage --from {} --to NEW`",
        location.network.records(),
        print::number(damaged),
        location.data.display(),
    );
    ExitCode::FAILURE
}
