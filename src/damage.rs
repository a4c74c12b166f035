//! What a command says of records that it could not read.

use std::process::ExitCode;

use hark_archive::Store;

use crate::location::ArchiveLocation;
use crate::print;

/// Returns the exit code of a command that has read `store`, which it has opened itself. If records
/// could not be read, says how many and what to do; `effect` is what that means for the command's
/// result.
pub(crate) fn report(store: &dyn Store, location: &ArchiveLocation, effect: &str) -> ExitCode {
    tell(store.stats().damaged, location, effect)
}

/// Does the same as [`report`], for a known number of records.
pub(crate) fn tell(damaged: u64, location: &ArchiveLocation, effect: &str) -> ExitCode {
    if damaged == 0 {
        return ExitCode::SUCCESS;
    }
    print::note!(
        "hark: {} could not be read: {}. {effect}. `hark check` names the files; restore them from \
         a backup, or bring what is whole into a new archive with `hark salvage --from {} --to NEW`",
        location.network.records(),
        print::number(damaged),
        location.data.display(),
    );
    ExitCode::FAILURE
}
