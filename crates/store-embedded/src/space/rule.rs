//! The rule of disk space: how many bytes must stay free beside a batch or a job, and how many
//! bytes retention keeps free.
//!
//! The two amounts belong together. If the writer or a job waited for more free space than
//! retention keeps free, nothing would ever end the wait.

use std::io;

use hark_archive::limits::ERASE_STEP;

use crate::engine::files::ShelfFiles;
use crate::log::LogFrame;
use crate::maintenance::jobs::ShelfJobs;

/// Number of bytes that a batch leaves free: enough for a manifest and the header of a log.
const BESIDE_WRITES: u64 = 128 << 10;
/// Number of bytes that an urgent job leaves free while space is short: enough for a manifest.
const BESIDE_URGENT: u64 = 128 << 10;
/// Number of bytes that the writer needs in addition to the records of a batch: for the deletions
/// of a step, and for the same number of deletions of replaced records.
pub(super) const DELETIONS: u64 = 2 * ERASE_STEP as u64 * LogFrame::DELETE_BYTES;

/// The values on which the rule depends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SpaceState {
    /// Number of free bytes of the disk.
    pub free: u64,
    /// The setting `free_bytes_min`: number of free bytes below which retention deletes records; 0
    /// if retention does not depend on free space.
    pub free_min: u64,
    /// Length of the removed reserve; 0 while the reserve exists.
    pub missing: u64,
    /// Number of free bytes without which the last batch was refused, or the oldest full head could
    /// not be sealed; 0 if there was no such failure.
    pub wanted: u64,
    /// Whether a requested compaction is running.
    pub is_compacting: bool,
}

/// A job, and the disk space that it uses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct JobSpace {
    /// The job, for messages.
    pub name: &'static str,
    /// Number of bytes that the job usually leaves free.
    pub beside: u64,
    /// Maximum number of bytes that the job writes.
    pub needs: u64,
    /// Whether the job frees space, repairs a file, or takes space that retention frees elsewhere.
    /// Such a job may use nearly all space while space is short, as all jobs of a requested
    /// compaction may.
    pub is_urgent: bool,
}

/// A use of disk space.
#[derive(Clone, Copy, Debug)]
pub(super) enum SpaceUse<'a> {
    /// A batch that only puts records.
    Puts,
    /// A batch with a deletion.
    Deletions,
    /// A job of maintenance.
    Job(&'a JobSpace),
}

impl SpaceState {
    /// Reads the present state. Returns an error if the disk does not report its free space.
    pub(super) fn read(files: &ShelfFiles, jobs: &ShelfJobs) -> io::Result<Self> {
        let reserve = files.options().reserve.as_ref();
        Ok(Self {
            free: files.free_bytes()?,
            free_min: files.bounds().free_bytes_min,
            missing: reserve.map_or(0, |reserve| reserve.missing()),
            wanted: jobs.space().wanted_bytes().max(jobs.wanted_by_sealing()),
            is_compacting: jobs.space().is_compacting(),
        })
    }

    /// Number of bytes that must stay free beside a batch or a job.
    pub(super) fn beside(&self, of: SpaceUse<'_>) -> u64 {
        match of {
            SpaceUse::Puts => BESIDE_WRITES + self.missing,
            // Deletions leave half of the reserve's space for the rewrites that follow.
            SpaceUse::Deletions => BESIDE_WRITES + self.missing / 2,
            SpaceUse::Job(_) if self.is_compacting => BESIDE_URGENT,
            SpaceUse::Job(job) if job.is_urgent && self.is_short() => BESIDE_URGENT,
            SpaceUse::Job(job) if self.free_min == 0 => job.beside,
            SpaceUse::Job(job) => job.beside.min(self.free_min / 2),
        }
    }

    /// Number of bytes that must become free before `needs` bytes can be written.
    pub(super) fn lack(&self, of: SpaceUse<'_>, needs: u64) -> u64 {
        needs.saturating_add(self.beside(of)).saturating_sub(self.free)
    }

    /// Number of bytes that retention keeps free. This is more than `free_min` if `free_min` does
    /// not suffice for the writer, for sealing or for a new reserve. A reserve is made only if
    /// twice its length is free.
    pub(super) fn free_target(&self) -> u64 {
        if self.free_min == 0 {
            return 0;
        }
        let writes = DELETIONS + self.beside(SpaceUse::Puts);
        self.free_min.max(2 * self.missing).max(self.wanted).max(writes)
    }

    /// Whether less space is free than retention keeps free, or too little for the writer. Then
    /// urgent jobs may use nearly all space.
    pub(super) fn is_short(&self) -> bool {
        self.free < self.free_target() || self.lack(SpaceUse::Puts, DELETIONS) > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::space::job_room::{BESIDE_MERGES, BESIDE_OTHERS};

    const KIB: u64 = 1 << 10;
    const MIB: u64 = 1 << 20;

    fn job(beside: u64, is_urgent: bool) -> JobSpace {
        JobSpace { name: "a job", beside, needs: 0, is_urgent }
    }

    fn state(free: u64, free_min: u64, missing: u64) -> SpaceState {
        SpaceState { free, free_min, missing, ..SpaceState::default() }
    }

    #[test]
    fn each_use_leaves_its_part_of_the_disk_free() {
        // Free bytes, `free_bytes_min` and missing reserve in MiB. The bytes that puts, deletions,
        // a merge, sealing and a rewrite leave free, in KiB.
        let table = [
            (100, 0, 0, [128, 128, 32 << 10, 8 << 10, 8 << 10]),
            // Without a bound, space is short once the writer lacks space.
            (1, 0, 0, [128, 128, 32 << 10, 8 << 10, 8 << 10]),
            (0, 0, 0, [128, 128, 32 << 10, 8 << 10, 128]),
            // A deletion has removed the reserve, and the rewrite that follows may use its space.
            (4, 0, 4, [4_224, 2_176, 32 << 10, 8 << 10, 128]),
            (100, 0, 4, [4_224, 2_176, 32 << 10, 8 << 10, 8 << 10]),
            // Jobs leave at most half of a bound free.
            (100, 90, 0, [128, 128, 32 << 10, 8 << 10, 8 << 10]),
            (100, 4, 0, [128, 128, 2 << 10, 2 << 10, 2 << 10]),
            (80, 90, 0, [128, 128, 32 << 10, 8 << 10, 128]),
            (7, 4, 4, [4_224, 2_176, 2 << 10, 2 << 10, 128]),
        ];
        for (free, free_min, missing, expected) in table {
            let state = state(free * MIB, free_min * MIB, missing * MIB);
            let [merge, seal] = [job(BESIDE_MERGES, false), job(BESIDE_OTHERS, false)];
            let rewrite = job(BESIDE_OTHERS, true);
            let uses = [SpaceUse::Puts, SpaceUse::Deletions, SpaceUse::Job(&merge)];
            let uses = uses.into_iter().chain([&seal, &rewrite].map(SpaceUse::Job));
            let found: Vec<u64> = uses.map(|of| state.beside(of)).collect();
            assert_eq!(found, expected.map(|kib| kib * KIB), "{state:?}");
            let compacting = SpaceState { is_compacting: true, ..state };
            assert_eq!(compacting.beside(SpaceUse::Job(&merge)), BESIDE_URGENT, "{state:?}");
        }
    }

    #[test]
    fn nothing_waits_for_more_space_than_retention_keeps_free() {
        let amounts = [1, 100 * KIB, MIB, 4 * MIB, 7 * MIB, 64 * MIB, 1 << 40];
        for free_min in amounts {
            for (missing, wanted) in [(0, 0), (4 * MIB, 0), (160 * MIB, 0), (4 * MIB, 90 * MIB)] {
                let lacking = SpaceState { wanted, ..state(0, free_min, missing) };
                let enough = SpaceState { free: lacking.free_target(), ..lacking };
                let when = format!("{enough:?}");
                assert!(lacking.is_short() && !enough.is_short(), "{when}");
                assert!(enough.free >= free_min && enough.free >= wanted, "{when}");
                assert!(enough.free >= 2 * missing, "{when}: no reserve is made");
                assert_eq!(enough.lack(SpaceUse::Puts, DELETIONS), 0, "{when}");
                assert_eq!(enough.lack(SpaceUse::Deletions, DELETIONS), 0, "{when}");
                // A job without output fits, so the output alone decides.
                assert_eq!(enough.lack(SpaceUse::Job(&job(BESIDE_OTHERS, false)), 0), 0, "{when}");
            }
        }
        assert_eq!(SpaceState { wanted: MIB, ..state(0, 0, MIB) }.free_target(), 0);
    }
}
