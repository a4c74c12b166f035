//! The rows of a head that are included in sums of ids.

use super::Head;
use crate::sums::SummedHead;

impl Head {
    /// Passes the rows for sums to `with`: the published rows that are alive, have not expired by
    /// `now`, and have no `hidden` kind.
    pub(crate) fn summed<R>(
        &self,
        hidden: &[u32],
        now: u64,
        with: impl FnOnce(&mut SummedHead) -> R,
    ) -> R {
        let mut summed = self.summed.lock();
        let summed = SummedHead::of(&mut summed, hidden);
        self.catch_up(summed, now);
        with(summed)
    }

    /// Adds the rows that were published since the last call, and removes expired rows.
    fn catch_up(&self, summed: &mut SummedHead, now: u64) {
        if summed.advance(now) {
            // Rows that died earlier have already been removed.
            for (_, row) in self.expired_by(now).into_iter().filter(|(_, row)| !self.is_dead(*row))
            {
                self.remove_summed(summed, row);
            }
        }
        let published = self.published();
        for row in summed.unseen(published) {
            if self.is_dead(row) || self.row(row).is_none_or(|row| summed.hides(row.kind)) {
                continue;
            }
            // `kill` waits until this loop has ended, so a row that dies during the loop is removed
            // afterwards.
            if let Some(record) = self.record(row) {
                summed.add(&record);
            }
        }
        summed.note_seen(published);
    }

    /// Removes a row from the sums, if the sums include the row.
    pub(super) fn remove_summed(&self, summed: &mut SummedHead, row: u32) {
        if summed.has_seen(row)
            && let Some(record) = self.record(row)
        {
            summed.take(&record);
        }
    }
}
