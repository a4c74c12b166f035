//! Wakes threads that wait for work behind a lock. A condition variable alone makes a system call
//! at each wake-up, even if no thread waits, as is mostly the case under load.

use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::{Condvar, MutexGuard};

#[derive(Default)]
pub(crate) struct Bell {
    condition: Condvar,
    /// Number of waiting threads, or more after a spurious wake-up. Changed only under the lock.
    asleep: AtomicUsize,
}

impl Bell {
    /// Waits, without the lock, until the bell rings. May wake spuriously.
    pub(crate) fn wait<T>(&self, lock: &mut MutexGuard<'_, T>) {
        self.asleep.fetch_add(1, Ordering::Relaxed);
        self.condition.wait(lock);
    }

    /// Releases the lock and wakes a thread, if one waits.
    pub(crate) fn ring<T>(&self, lock: MutexGuard<'_, T>) {
        let asleep = self.asleep.load(Ordering::Relaxed);
        if asleep > 0 {
            self.asleep.store(asleep - 1, Ordering::Relaxed);
        }
        drop(lock);
        if asleep > 0 {
            self.condition.notify_one();
        }
    }

    /// Wakes all waiting threads.
    pub(crate) fn ring_for_all(&self) {
        self.condition.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::thread;

    use parking_lot::Mutex;

    use super::*;

    #[test]
    fn whatever_is_queued_is_taken_however_the_sleepers_and_the_rings_fall() {
        let queue: Arc<(Mutex<usize>, Bell)> = Arc::default();
        let takers: Vec<_> = (0..3)
            .map(|_| {
                let queue = Arc::clone(&queue);
                thread::spawn(move || {
                    for _ in 0..20_000 {
                        let mut count = queue.0.lock();
                        while *count == 0 {
                            queue.1.wait(&mut count);
                        }
                        *count -= 1;
                    }
                })
            })
            .collect();
        for _ in 0..60_000 {
            let mut count = queue.0.lock();
            *count += 1;
            queue.1.ring(count);
        }
        // If a thread was never woken, the test would block here.
        for taker in takers {
            taker.join().unwrap();
        }
        assert_eq!(*queue.0.lock(), 0);
    }
}
