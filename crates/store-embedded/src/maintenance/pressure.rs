//! How maintenance reacts to lack of disk space, and to many deletes at once.

use std::sync::Arc;

use hark_archive::store::SpaceBounds;

use super::DeadBytes;
use crate::shelf::EmbeddedShelf;

/// The archive may grow by one part in this many while rewrites wait for the end of many deletes.
const GROWTH_SHARE: u64 = 5;

impl EmbeddedShelf {
    /// Whether the disk has less free space than the settings require.
    pub(super) fn lacks_space(&self) -> bool {
        let free_min = self.bounds.load().free_bytes_min;
        // A disk that does not report its free space counts as having enough.
        free_min > 0 && self.options.disk.free(&self.dir).is_ok_and(|free| free < free_min)
    }

    /// Records whether more deletes follow at once.
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

    /// Whether rewrites of partly dead logs are postponed: more of their records will be deleted
    /// soon, and each log would be rewritten many times.
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

    /// Bytes of deleted records that maintenance frees without another delete.
    pub(crate) fn reclaimable(&self, dead: &DeadBytes) -> u64 {
        let deletes_follow = self.signal.lock().deletes_from_bytes.is_some();
        if deletes_follow || self.lacks_space() {
            return dead.due + dead.spread;
        }
        dead.reclaimable(self.bounds.load().dead_bytes_max)
    }

    /// Applies new bounds of the space. If the bounds have changed, wakes maintenance at once.
    pub(crate) fn set_space(&self, bounds: &SpaceBounds) {
        if **self.bounds.load() != *bounds {
            self.bounds.store(Arc::new(*bounds));
            self.call_maintenance();
        }
    }
}
