//! What maintenance makes of the space on the disk, and of many deletes at once.

use std::sync::Arc;

use hark_archive::store::SpaceBounds;

use super::DeadBytes;
use crate::shelf::EmbeddedShelf;

/// By how much the archive may grow while rewrites wait for the end of many deletes: one part in
/// this many.
const GROWTH_SHARE: u64 = 5;

impl EmbeddedShelf {
    /// Whether less of the disk is free than the settings want.
    pub(super) fn lacks_space(&self) -> bool {
        let free_min = self.bounds.load().free_bytes_min;
        // Where the disk does not say what is free, nothing is known to be lacking.
        free_min > 0 && self.options.disk.free(&self.dir).is_ok_and(|free| free < free_min)
    }

    /// Notes whether more deletes follow at once.
    pub(crate) fn deletes_follow(&self, follow: bool) {
        let bytes = if follow { Some(self.bytes_on_disk()) } else { None };
        let mut signal = self.signal.lock();
        if follow {
            signal.deletes_from_bytes = signal.deletes_from_bytes.or(bytes);
            return;
        }
        signal.deletes_from_bytes = None;
        drop(signal);
        self.call_maintenance();
    }

    /// Whether logs that are partly dead are left alone for now, as more of their records are about
    /// to be deleted: each would be rewritten many times.
    pub(super) fn puts_off_rewrites(&self) -> bool {
        let Some(bytes) = self.signal.lock().deletes_from_bytes else { return false };
        self.bytes_on_disk() <= bytes + bytes / GROWTH_SHARE
    }

    /// Bytes of the logs and segments.
    fn bytes_on_disk(&self) -> u64 {
        let view = self.view.load();
        let segments = view.segments.iter().map(|segment| {
            let logs = segment.logs.iter().flatten().map(|log| log.written()).sum::<u64>();
            logs + segment.file.bytes() + segment.addresses.bytes()
        });
        segments.sum::<u64>() + view.heads().map(|head| head.log.written()).sum::<u64>()
    }

    /// Bytes of deleted records that are given back without another delete.
    pub(crate) fn reclaimable(&self, dead: &DeadBytes) -> u64 {
        let deletes_follow = self.signal.lock().deletes_from_bytes.is_some();
        if deletes_follow || self.lacks_space() {
            return dead.due + dead.spread;
        }
        dead.reclaimable(self.bounds.load().dead_bytes_max)
    }

    /// Puts other bounds of the space in force, and has maintenance look at once what they call for.
    pub(crate) fn set_space(&self, bounds: &SpaceBounds) {
        if **self.bounds.load() != *bounds {
            self.bounds.store(Arc::new(*bounds));
            self.call_maintenance();
        }
    }
}
