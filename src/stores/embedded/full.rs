//! The error message for a full disk.

use std::path::Path;

/// Returns the error message for a disk so full that nothing can be written.
pub(super) fn disk_is_full(path: &Path) -> String {
    format!(
        "the disk is full; nothing was changed, and the archive is whole. Make room on the disk of \
         {}, then run this again",
        path.display()
    )
}
