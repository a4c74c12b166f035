//! The time, memory and bytes that the process has used, and a disk that never syncs.

use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use hark_store_embedded::disk::{Disk, DiskFile, RealDisk};

/// CPU time of this thread so far.
pub(crate) fn cpu_here() -> Duration {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux");
    let spent = stat.split(' ').next().and_then(|ns| ns.parse().ok());
    Duration::from_nanos(spent.unwrap_or(0))
}

/// CPU time of all threads so far.
pub(crate) fn cpu() -> Duration {
    let tasks = std::fs::read_dir("/proc/self/task").expect("Linux");
    let spent = tasks.filter_map(|task| {
        let stat = std::fs::read_to_string(task.ok()?.path().join("schedstat")).ok()?;
        stat.split(' ').next()?.parse::<u64>().ok()
    });
    Duration::from_nanos(spent.sum())
}

/// Number of bytes passed to write calls so far.
pub(crate) fn written() -> u64 {
    let io = std::fs::read_to_string("/proc/self/io").expect("Linux");
    let line = io.lines().find_map(|line| line.strip_prefix("wchar: "));
    line.and_then(|bytes| bytes.parse().ok()).unwrap_or(0)
}

/// Prints the CPU time and the wall time that a plain file needs to write and sync `bytes` bytes.
pub(crate) fn sync_floor(dir: &Path, bytes: usize) {
    let mut file = std::fs::File::create(dir.join("sync-floor")).expect("creates");
    let block = vec![7; bytes];
    let rounds = 500u32;
    let (cpu_before, started) = (cpu(), Instant::now());
    for _ in 0..rounds {
        io::Write::write_all(&mut file, &block).expect("writes");
        file.sync_data().expect("syncs");
    }
    println!(
        "the disk alone: {:.0} us CPU, {:.0} us wall to write and sync {bytes} bytes",
        cpu().saturating_sub(cpu_before).as_secs_f64() * 1e6 / f64::from(rounds),
        started.elapsed().as_secs_f64() * 1e6 / f64::from(rounds)
    );
    std::fs::remove_file(dir.join("sync-floor")).expect("removes");
}

/// The machine's disk without syncs, to measure the time of the archive alone.
pub(crate) struct NoSync;

struct NoSyncFile(Box<dyn DiskFile>);

impl DiskFile for NoSyncFile {
    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all(bytes)
    }

    fn sync(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn reserve(&mut self, len: u64, end: u64) -> io::Result<()> {
        self.0.reserve(len, end)
    }
}

impl Disk for NoSync {
    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        Ok(Box::new(NoSyncFile(RealDisk.create(path)?)))
    }

    fn append(&self, path: &Path, sure: u64, len: u64) -> io::Result<Box<dyn DiskFile>> {
        Ok(Box::new(NoSyncFile(RealDisk.append(path, sure, len)?)))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        RealDisk.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        RealDisk.remove(path)
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        RealDisk.create_dir(path)
    }

    fn sync_dir(&self, _: &Path) -> io::Result<()> {
        Ok(())
    }
}

/// Anonymous resident memory of the process, in MB.
pub(crate) fn rss_anon_mb() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    line.and_then(|rest| rest.trim().split(' ').next()?.parse::<u64>().ok()).unwrap_or(0) / 1024
}

/// Total length of the files in a directory.
pub(crate) fn folder_bytes(dir: &Path) -> u64 {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries
        .map(|entry| match entry.metadata() {
            Ok(data) if data.is_dir() => folder_bytes(&entry.path()),
            Ok(data) => data.len(),
            Err(_) => 0,
        })
        .sum()
}
