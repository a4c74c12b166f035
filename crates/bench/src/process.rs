//! The CPU time and the memory of processes, as reported by Linux.

use std::collections::HashMap;
use std::fs;
use std::time::Duration;

use anyhow::Context as _;

/// The unit of CPU time in /proc/PID/stat: Linux reports 100 ticks per second on every machine.
const TICK: Duration = Duration::from_millis(10);

/// The processes that make up a server. Empty if the caller has named no processes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Processes(Vec<u32>);

/// Returns the CPU time of the calling thread.
pub(crate) fn thread_cpu() -> Duration {
    let stat = fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    Duration::from_nanos(first_number(&stat))
}

fn first_number(text: &str) -> u64 {
    text.split_whitespace().next().and_then(|number| number.parse().ok()).unwrap_or(0)
}

/// CPU time that processes had used at some moment.
#[derive(Clone, Debug, Default)]
pub(crate) struct CpuTime {
    /// CPU time in ns of each living thread, by thread id.
    threads: HashMap<u64, u64>,
    /// CPU time of all threads, including those that have ended, in ticks.
    ticks: u64,
}

/// The memory of processes, in KiB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct MemoryUse {
    /// Resident memory, including mapped files.
    pub(crate) rss: u64,
    /// Resident anonymous memory, which is not backed by files.
    pub(crate) anonymous: u64,
}

impl Processes {
    /// The processes with these ids. Fails if a process does not exist.
    pub(crate) fn new(pids: &[u32]) -> anyhow::Result<Self> {
        let processes = Self(pids.to_vec());
        processes.used()?;
        Ok(processes)
    }

    /// The current process.
    pub(crate) fn own() -> Self {
        Self(vec![std::process::id()])
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn used(&self) -> anyhow::Result<CpuTime> {
        let mut used = CpuTime::default();
        for pid in &self.0 {
            let folder = format!("/proc/{pid}/task");
            let tasks = fs::read_dir(&folder).with_context(|| {
                format!("process {pid} is not there; --pid takes the server's id on this machine")
            })?;
            for task in tasks.flatten() {
                // A thread may have ended since the list was read.
                let Ok(stat) = fs::read_to_string(task.path().join("schedstat")) else { continue };
                let name = task.file_name().to_string_lossy().parse().unwrap_or(0);
                used.threads.insert(name, first_number(&stat));
            }
            used.ticks += ticks(*pid, 11);
        }
        Ok(used)
    }

    /// Returns the CPU time used since `before`. `None` if no process was named.
    pub(crate) fn since(&self, before: &CpuTime) -> anyhow::Result<Option<Duration>> {
        if self.is_empty() {
            return Ok(None);
        }
        Ok(Some(self.used()?.minus(before)))
    }

    /// Returns the current memory. `None` if no process was named or its memory may not be read.
    pub(crate) fn memory(&self) -> Option<MemoryUse> {
        let mut sum = MemoryUse::default();
        for pid in &self.0 {
            let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup"));
            let (text, names) = if let Ok(text) = rollup {
                (text, ["Rss:", "Anonymous:"])
            } else {
                // Only the same user may read smaps_rollup; status is nearly as exact.
                (fs::read_to_string(format!("/proc/{pid}/status")).ok()?, ["VmRSS:", "RssAnon:"])
            };
            let value = |name: &str| {
                let line = text.lines().find_map(|line| line.strip_prefix(name))?;
                line.split_whitespace().next()?.parse::<u64>().ok()
            };
            sum.rss += value(names[0])?;
            sum.anonymous += value(names[1])?;
        }
        (!self.is_empty()).then_some(sum)
    }
}

/// A process and its children, such as the processes of a PostgreSQL server.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProcessTree(u32);

/// CPU time that a process tree had used at some moment.
#[derive(Clone, Debug, Default)]
pub(crate) struct TreeCpuTime {
    /// CPU time of each living process, by its id.
    living: HashMap<u32, CpuTime>,
    /// CPU time of the children that have ended, in ticks.
    ended_ticks: u64,
}

impl ProcessTree {
    pub(crate) fn new(root: u32) -> Self {
        Self(root)
    }

    /// Returns the ids of the process and of its children.
    pub(crate) fn ids(self) -> Vec<u32> {
        let Self(root) = self;
        let list = fs::read_to_string(format!("/proc/{root}/task/{root}/children"));
        let list = list.unwrap_or_default();
        let children = list.split_whitespace().filter_map(|id| id.parse().ok());
        std::iter::once(root).chain(children).collect()
    }

    pub(crate) fn used(self) -> anyhow::Result<TreeCpuTime> {
        let mut used = TreeCpuTime { ended_ticks: ticks(self.0, 13), ..Default::default() };
        for id in self.ids() {
            match Processes(vec![id]).used() {
                Ok(time) => drop(used.living.insert(id, time)),
                // A child may have ended since the list was read.
                Err(error) if id == self.0 => return Err(error),
                Err(_) => {}
            }
        }
        Ok(used)
    }
}

impl TreeCpuTime {
    pub(crate) fn minus(&self, before: &Self) -> Duration {
        let none = CpuTime::default();
        let of_living = self.living.iter().map(|(id, time)| {
            let before = before.living.get(id).unwrap_or(&none);
            time.minus(before)
        });
        let ended = self.ended_ticks.saturating_sub(before.ended_ticks);
        // `ended` includes the whole CPU time of children that have ended since `before`. The time
        // that these children had used at `before` is subtracted.
        let known = before.living.iter().filter(|(id, _)| !self.living.contains_key(id));
        let known: u64 = known.map(|(_, time)| time.ticks).sum();
        of_living.sum::<Duration>() + ticks_time(ended.saturating_sub(known))
    }
}

/// Returns the sum of the fields `field` and `field + 1` of /proc/PID/stat. Field 0 is the field
/// after the program's name, which may contain blanks.
fn ticks(pid: u32, field: usize) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
    fields.skip(field).take(2).filter_map(|number| number.parse::<u64>().ok()).sum()
}

fn ticks_time(ticks: u64) -> Duration {
    TICK.saturating_mul(u32::try_from(ticks).unwrap_or(u32::MAX))
}

impl CpuTime {
    fn minus(&self, before: &Self) -> Duration {
        let ns = self.threads.iter().map(|(thread, ns)| {
            ns.saturating_sub(before.threads.get(thread).copied().unwrap_or(0))
        });
        let exact = Duration::from_nanos(ns.sum());
        // Only the coarse count includes threads that have ended.
        let ticks = self.ticks.saturating_sub(before.ticks);
        let coarse = ticks_time(ticks);
        if coarse > exact + 3 * TICK { coarse } else { exact }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_that_ended_are_in_the_coarse_count() {
        let used = |threads: &[(u64, u64)], ticks| CpuTime {
            threads: threads.iter().copied().collect(),
            ticks,
        };
        let before = used(&[(1, 1_000), (2, 500)], 10);
        let after = used(&[(1, 5_000), (3, 700)], 11);
        assert_eq!(after.minus(&before), Duration::from_nanos(4_700));
        assert_eq!(used(&[(1, 2_000)], 20).minus(&before), Duration::from_millis(100));
    }

    #[test]
    fn a_tree_counts_children_that_live_and_that_have_ended() {
        let tree = |living: &[(u32, u64, u64)], ended_ticks| TreeCpuTime {
            living: living
                .iter()
                .map(|&(id, ns, ticks)| {
                    (id, CpuTime { threads: HashMap::from([(u64::from(id), ns)]), ticks })
                })
                .collect(),
            ended_ticks,
        };
        let before = tree(&[(1, 1_000, 0), (2, 20_000_000, 2)], 5);
        let after = tree(&[(1, 1_500, 0), (3, 700, 0)], 10);
        // Three of the five ticks are new: the ended child had used the other two before.
        assert_eq!(after.minus(&before), Duration::from_nanos(1_200) + 3 * TICK);
        let own = ProcessTree::new(std::process::id());
        assert_eq!(own.ids()[0], std::process::id());
        assert!(own.used().unwrap().minus(&TreeCpuTime::default()) > Duration::ZERO);
        assert!(ProcessTree::new(u32::MAX).used().is_err());
    }

    #[test]
    fn this_process_costs_something() {
        let own = Processes::own();
        let before = own.used().unwrap();
        let mut sum = 0u64;
        while own.since(&before).unwrap().unwrap() < Duration::from_millis(1) {
            sum = std::hint::black_box(sum + 1);
        }
        assert!(own.memory().unwrap().anonymous > 100);
        assert!(Processes::new(&[u32::MAX]).unwrap_err().to_string().contains("--pid"));
        assert_eq!(Processes::default().since(&before).unwrap(), None);
    }
}
