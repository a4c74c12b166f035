//! Reads from `/proc` what the system reports about this process.

use std::fs;

/// Ticks of the processor clock in a second, as `/proc` counts them on Linux.
const TICKS_S: f64 = 100.0;
/// Estimated number of open files other than connections: the archive's files, and other sockets.
const FILES: u64 = 500;

/// Memory, files and processor time of this process. A value that the system does not report is
/// `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct ProcessStats {
    /// Memory in use, in bytes. Pages of mapped files count only while they are resident.
    pub(crate) resident_bytes: Option<u64>,
    /// Size of the address space in bytes, including mapped files.
    pub(crate) virtual_bytes: Option<u64>,
    /// Number of open files and sockets.
    pub(crate) open_fds: Option<u64>,
    /// Maximum number of open files and sockets.
    pub(crate) max_fds: Option<u64>,
    /// Seconds of processor time.
    pub(crate) cpu_s: Option<f64>,
}

impl ProcessStats {
    /// Reads the current values.
    pub(crate) fn now() -> Self {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let limits = fs::read_to_string("/proc/self/limits").unwrap_or_default();
        let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
        let kib = |name| word_behind(&status, name).map(|kib: u64| kib * 1024);
        // The program's name, in parentheses, may contain spaces; the fields after the name do not.
        let fields: Vec<f64> = stat
            .rsplit_once(')')
            .map_or("", |(_, fields)| fields)
            .split_whitespace()
            .map(|field| field.parse().unwrap_or_default())
            .collect();
        let ticks = |field: usize| fields.get(field - 3).map(|ticks| ticks / TICKS_S);
        Self {
            resident_bytes: kib("VmRSS:"),
            virtual_bytes: kib("VmSize:"),
            open_fds: fs::read_dir("/proc/self/fd").ok().map(|files| files.count() as u64),
            max_fds: word_behind(&limits, "Max open files"),
            cpu_s: ticks(14).zip(ticks(15)).map(|(user, system)| user + system),
        }
    }
}

/// Logs a warning if connections may need more files than the process may open. Without a free file
/// descriptor, a connection is not accepted, so its client gets no reason.
pub(crate) fn warn_if_few_files(connections_max: usize) {
    let needed = connections_max as u64 + FILES;
    if let Some(max_fds) = ProcessStats::now().max_fds.filter(|max_fds| *max_fds < needed) {
        tracing::warn!(
            max_fds,
            connections_max,
            "fewer open files are allowed than limits.connections_max needs; raise the limit \
             (ulimit -Hn, LimitNOFILE) or lower the setting"
        );
    }
}

/// Returns the word after `begins` on the first line that starts with `begins`.
fn word_behind<T: std::str::FromStr>(text: &str, begins: &str) -> Option<T> {
    let line = text.lines().find_map(|line| line.strip_prefix(begins))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn linux_says_all_of_it() {
        let process = ProcessStats::now();
        assert!(process.resident_bytes.is_some_and(|bytes| bytes > 100_000), "{process:?}");
        assert!(process.virtual_bytes >= process.resident_bytes, "{process:?}");
        assert!(process.open_fds.is_some_and(|open| open > 2), "{process:?}");
        assert!(process.max_fds >= process.open_fds && process.cpu_s.is_some(), "{process:?}");
    }
}
