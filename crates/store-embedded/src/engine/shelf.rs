//! A shelf that this process has opened, in four parts. Functions take the parts that they need,
//! and the whole shelf only if they need most parts.

use super::current_view::CurrentView;
use super::files::ShelfFiles;
use super::writer::ShelfWriter;
use crate::maintenance::jobs::ShelfJobs;

/// The owner of a shelf's parts, which the shelf's threads share.
pub(crate) struct OpenShelf {
    /// The files, and the settings of their space.
    pub files: ShelfFiles,
    /// The commit side: the end of the log, and the manifest.
    pub writer: ShelfWriter,
    /// The segments and heads that searches and the writer read.
    pub view: CurrentView,
    /// The state of maintenance.
    pub jobs: ShelfJobs,
}
