//! The thread of the slow check.

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use hark_archive::vital;

use super::step::scrub_step;
use crate::engine::shelf::OpenShelf;
use crate::engine::shelf_dir::random_u32;

/// Longest pause between two steps.
const PAUSE_MAX: Duration = Duration::from_hours(1);

/// Starts the thread of the slow check, if the options enable the slow check.
pub(crate) fn start(shelf: &Arc<OpenShelf>) -> io::Result<Option<JoinHandle<()>>> {
    let Some(within) = shelf.files.options().scrub_within.filter(|within| !within.is_zero()) else {
        return Ok(None);
    };
    let shelf = Arc::clone(shelf);
    let thread = vital::spawn("hark-scrub", move || {
        begin_anywhere(&shelf);
        let mut next = Instant::now();
        loop {
            let mut signal = shelf.jobs.signal();
            while !signal.stop && (signal.is_paused() || Instant::now() < next) {
                if signal.is_paused() {
                    shelf.jobs.wait(&mut signal);
                } else {
                    shelf.jobs.wait_until(&mut signal, next);
                }
            }
            if signal.stop {
                return;
            }
            drop(signal);
            let (read, has_ended) = scrub_step(&shelf);
            let total = shelf.view.load().bytes_on_disk().max(1);
            let share = read as f64 / total as f64;
            let share = within.mul_f64(share);
            // After a pass, the thread pauses. Otherwise the passes over an empty shelf would
            // follow each other without a pause.
            let pause = if has_ended { within } else { share }.min(PAUSE_MAX);
            next = next.max(Instant::now()) + pause;
        }
    })?;
    Ok(Some(thread))
}

fn begin_anywhere(shelf: &OpenShelf) {
    let view = shelf.view.load();
    let sealed = view.segments.iter().flat_map(|segment| segment.logs.iter().flatten());
    let logs: Vec<u32> = sealed.map(|log| log.number).collect();
    // Without a random number, the pass begins with the first log.
    let chosen = random_u32().unwrap_or(0) as usize % logs.len().max(1);
    shelf.jobs.scrub().begin_at(&logs, chosen);
}
