//! The maintenance thread.

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use hark_archive::vital;
use parking_lot::MutexGuard;

use super::erase::erase_wait;
use super::jobs::ShelfJobs;
use super::report::WorkReport;
use super::run::maintain_all;
use super::signal::REST;
use crate::engine::files::ShelfFiles;
use crate::engine::shelf::OpenShelf;
use crate::repair::file_lengths::{FileLooks, LOOK_EVERY};

/// Starts the maintenance thread.
pub(crate) fn start(shelf: &Arc<OpenShelf>) -> io::Result<JoinHandle<()>> {
    let shelf = Arc::clone(shelf);
    shelf.jobs.signal().work = true;
    vital::spawn("hark-maintain", move || {
        let jobs = &shelf.jobs;
        let (mut done, mut looks) = (WorkReport::default(), FileLooks::new());
        loop {
            let pause = next_check(jobs, &shelf.files, &done);
            let mut signal = jobs.signal();
            let until = pause.map(|pause| Instant::now() + pause);
            while (!signal.work || signal.is_paused()) && !signal.stop {
                let left = until.map(|until| until.saturating_duration_since(Instant::now()));
                if left.is_some_and(|left| left.is_zero()) && !signal.is_paused() {
                    break;
                }
                let left = left.filter(|left| !left.is_zero());
                jobs.wait_for(&mut signal, left.unwrap_or(LOOK_EVERY).min(LOOK_EVERY));
                MutexGuard::unlocked(&mut signal, || looks.check_if_due(&shelf));
            }
            if signal.stop {
                return;
            }
            signal.work = false;
            drop(signal);
            looks.check_if_due(&shelf);
            let result = maintain_all(&shelf);
            done.note(&jobs.done());
            let mut signal = jobs.signal();
            signal.note_result(result.err().as_ref());
            jobs.notify();
            if signal.failed.is_some() && !signal.stop {
                // Notifications do not shorten the pause, because on a full disk every refused
                // batch sends a notification.
                let until = Instant::now() + REST;
                while !signal.stop && !jobs.wait_until(&mut signal, until) {}
                signal.work = true;
            }
        }
    })
}

/// Time after which maintenance looks for work without being woken; `None` if it waits to be woken.
fn next_check(jobs: &ShelfJobs, files: &ShelfFiles, done: &WorkReport) -> Option<Duration> {
    let space = jobs.space().lacking().map(|_| REST);
    let erase = erase_wait(files, jobs);
    [space, erase, done.next()].into_iter().flatten().min()
}
