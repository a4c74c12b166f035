//! A shelf that this process has opened, in four parts. A function has only the parts that it needs
//! as parameters, and the whole shelf only if it needs most parts.

use super::current_view::CurrentView;
use super::files::ShelfFiles;
use super::writer::ShelfWriter;
use crate::maintenance::jobs::ShelfJobs;

/// The four parts. All threads of the shelf share this value.
pub(crate) struct OpenShelf {
    /// The files, and the bounds of their disk space.
    pub files: ShelfFiles,
    /// The state of commits: the end of the log, and the manifest.
    pub writer: ShelfWriter,
    /// The segments and heads that searches and the writer read.
    pub view: CurrentView,
    /// The state of maintenance.
    pub jobs: ShelfJobs,
}
