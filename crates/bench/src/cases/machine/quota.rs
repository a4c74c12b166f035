//! Bounds the CPU of a server by a control group of Linux: version 2 (`cpu.max`) or version 1
//! (`cpu.cfs_quota_us`), depending on which file is writable.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::Context as _;

use super::RunDirectory;
use crate::process::ProcessTree;

/// The period of a group's quota, in us. A server that has used its quota pauses until the period
/// ends, so a short period means short pauses. The shortest quota that Linux grants is 1 ms.
const PERIOD_US: u64 = 20_000;
const ROOT: &str = "/sys/fs/cgroup";

/// The version of control groups, which determines the files that bound a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CgroupVersion {
    One,
    Two,
}

/// A control group with the processes of a server. The CPU of the group is not bounded until
/// [`CpuQuota::set`] sets a bound.
pub(in crate::cases) struct CpuQuota {
    group: PathBuf,
    version: CgroupVersion,
}

impl CpuQuota {
    /// Moves a server into a new group. Processes that the server starts later belong to the group
    /// as well.
    pub(in crate::cases) fn new(
        run: &RunDirectory,
        name: &str,
        server: ProcessTree,
    ) -> anyhow::Result<Self> {
        let quota = Self::empty(run, name)?;
        for id in server.ids() {
            let moved = quota.write("cgroup.procs", &id.to_string());
            // A child may have ended since the list was read.
            if Path::new(&format!("/proc/{id}")).exists() {
                moved?;
            }
        }
        Ok(quota)
    }

    /// Makes a group without processes.
    fn empty(run: &RunDirectory, name: &str) -> anyhow::Result<Self> {
        let (parent, version) = parent()?;
        let group = parent.join(format!("hark-bench-{}-{name}", std::process::id()));
        let make = || {
            if version == CgroupVersion::Two {
                fs::write(parent.join("cgroup.subtree_control"), "+cpu")?;
            }
            fs::create_dir(&group)
        };
        make().with_context(|| format!("{} could not be made", group.display()))?;
        run.remember_group(&group)?;
        let quota = Self { group, version };
        quota.set(None)?;
        Ok(quota)
    }

    /// Fails if this process may not make groups that bound CPU.
    pub(in crate::cases) fn possible(run: &RunDirectory) -> anyhow::Result<()> {
        Self::empty(run, "none").map(drop)
    }

    /// Bounds the group to this many cores, which may be a fraction. `None` removes the bound.
    pub(in crate::cases) fn set(&self, cores: Option<f64>) -> anyhow::Result<()> {
        let quota_us = cores.map(|cores| (cores * PERIOD_US as f64).round().max(1_000.0) as u64);
        match self.version {
            CgroupVersion::Two => {
                let quota = quota_us.map_or_else(|| "max".into(), |quota| quota.to_string());
                self.write("cpu.max", &format!("{quota} {PERIOD_US}"))
            }
            CgroupVersion::One => {
                self.write("cpu.cfs_period_us", &PERIOD_US.to_string())?;
                let quota = quota_us.map_or_else(|| "-1".into(), |quota| quota.to_string());
                self.write("cpu.cfs_quota_us", &quota)
            }
        }
    }

    fn write(&self, file: &str, text: &str) -> anyhow::Result<()> {
        let file = self.group.join(file);
        fs::write(&file, text).with_context(|| format!("{} could not be written", file.display()))
    }
}

/// Returns the group of this process, the parent of the new groups.
fn parent() -> anyhow::Result<(PathBuf, CgroupVersion)> {
    let own = fs::read_to_string("/proc/self/cgroup").context("there are no control groups")?;
    let found = own_group(&own, |folder| Path::new(ROOT).join(folder).is_dir());
    let found = found.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound));
    found.context("no control group of this process bounds its CPU")
}

/// Finds the group that bounds CPU among the lines of /proc/self/cgroup: `1:cpu:/group` in version
/// 1, `0::/group` in version 2. `is_mounted` returns whether a folder of [`ROOT`] exists.
fn own_group(lines: &str, is_mounted: impl Fn(&str) -> bool) -> Option<(PathBuf, CgroupVersion)> {
    let groups = lines.lines().filter_map(|line| {
        let (controllers, group) = line.split_once(':')?.1.split_once(':')?;
        Some((controllers, group.trim_start_matches('/')))
    });
    let mut found = None;
    for (controllers, group) in groups {
        if controllers.is_empty() {
            found = found.or(Some((Path::new(ROOT).join(group), CgroupVersion::Two)));
        } else if controllers.split(',').any(|name| name == "cpu") && is_mounted(controllers) {
            return Some((Path::new(ROOT).join(controllers).join(group), CgroupVersion::One));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_group_of_this_process_is_found_in_both_versions() {
        let one = "9:name=systemd:/\n2:cpuacct:/\n1:cpu,cpuset:/a/b\n0::/c\n";
        let of = |lines, mounted| own_group(lines, |_| mounted);
        let group = |path: &str, version| Some((PathBuf::from(path), version));
        let first = group("/sys/fs/cgroup/cpu,cpuset/a/b", CgroupVersion::One);
        assert_eq!(of(one, true), first);
        assert_eq!(of(one, false), group("/sys/fs/cgroup/c", CgroupVersion::Two));
        assert_eq!(of("0::/\n", false), group("/sys/fs/cgroup", CgroupVersion::Two));
        assert_eq!(of("2:cpuacct:/\n", true), None);
    }
}
