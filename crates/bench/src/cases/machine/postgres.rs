//! A server of PostgreSQL with a new, empty data directory, on a free port of loopback.

use std::fs::{self, File};
use std::net::TcpListener;
use std::os::unix::fs::{MetadataExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};

use super::RunDirectory;
use crate::process::ProcessTree;
use crate::sql::server::SqlServer;

/// The oldest version that Hark works with.
const VERSION_MIN: u32 = 15;
/// How long a start may take.
const START: Duration = Duration::from_mins(1);
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// The settings of every server. The settings suit a short run: the files are removed at its end,
/// all data fits into memory, and nothing else runs during the questions.
const SETTINGS: [&str; 8] = [
    "listen_addresses=127.0.0.1",
    "unix_socket_directories=",
    "max_connections=200",
    "shared_buffers=512MB",
    "fsync=off",
    "full_page_writes=off",
    "max_wal_size=4GB",
    "autovacuum=off",
];
/// The further settings of Citus' nodes. Some background work of Citus is off, since nothing is
/// written or queried while shards move.
const CITUS_SETTINGS: [&str; 5] = [
    "shared_preload_libraries=citus",
    "citus.node_conninfo=sslmode=disable",
    "max_prepared_transactions=200",
    "citus.recover_2pc_interval=-1",
    "citus.distributed_deadlock_detection_factor=-1",
];

/// PostgreSQL's programs on this machine.
#[derive(Clone, Debug)]
pub(in crate::cases) struct InstalledPostgres {
    programs: PathBuf,
    version: u32,
    /// Additional settings of all servers, each as `name=value`.
    settings: Vec<String>,
}

/// A running server.
pub(in crate::cases) struct PostgresProcess {
    port: u16,
    child: Child,
}

impl InstalledPostgres {
    /// Finds the programs of the newest version, in PATH and in the directories of Debian's
    /// packages. All servers get `settings`, but settings of Citus are for its nodes only.
    pub(in crate::cases) fn find(settings: &[String]) -> anyhow::Result<Self> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let packaged = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
        let folders = std::env::split_paths(&path).chain(packaged.map(|of| of.path().join("bin")));
        let whole = folders.filter(|folder| {
            ["postgres", "initdb", "pg_basebackup"].iter().all(|name| folder.join(name).is_file())
        });
        let newest = whole.filter_map(|folder| Some((version(&folder)?, folder))).max();
        match newest {
            Some((version, programs)) if version >= VERSION_MIN => {
                Ok(Self { programs, version, settings: settings.to_vec() })
            }
            _ => bail!(
                "PostgreSQL {VERSION_MIN} or newer is needed, with initdb and pg_basebackup: install Debian's package \
                 `postgresql`, or name running servers with --servers"
            ),
        }
    }

    /// Returns whether Citus is installed for this version of PostgreSQL.
    pub(in crate::cases) fn has_citus(&self) -> bool {
        let output = Command::new(self.programs.join("pg_config")).arg("--sharedir").output();
        let listed = output.ok().filter(|output| output.status.success());
        let folder = listed.and_then(|output| String::from_utf8(output.stdout).ok());
        // Debian ships pg_config in a separate package. Without pg_config, Debian's folder is used.
        let folder = folder.unwrap_or_else(|| format!("/usr/share/postgresql/{}", self.version));
        Path::new(folder.trim()).join("extension/citus.control").is_file()
    }

    /// Starts a server with an empty data directory `name` in the directory of the run.
    pub(in crate::cases) fn start(
        &self,
        run: &RunDirectory,
        name: &str,
        with_citus: bool,
    ) -> anyhow::Result<PostgresProcess> {
        self.start_in(run, &run.path().join(name), with_citus, None)
            .with_context(|| format!("PostgreSQL's server `{name}` could not be started"))
    }

    /// Starts a copy of a running server, with its data, in the directory `name` of the run.
    pub(in crate::cases) fn copy(
        &self,
        run: &RunDirectory,
        name: &str,
        of: &PostgresProcess,
    ) -> anyhow::Result<PostgresProcess> {
        self.start_in(run, &run.path().join(name), false, Some(of))
            .with_context(|| format!("PostgreSQL's server `{name}` could not be copied"))
    }

    fn start_in(
        &self,
        run: &RunDirectory,
        folder: &Path,
        with_citus: bool,
        of: Option<&PostgresProcess>,
    ) -> anyhow::Result<PostgresProcess> {
        fs::create_dir(folder)?;
        let user = unprivileged(folder)?;
        if let Some((user, group)) = user {
            chown(folder, Some(user), Some(group))?;
        }
        let command = |program: &str| {
            let mut command = Command::new(self.programs.join(program));
            for (variable, _) in std::env::vars_os() {
                if variable.to_string_lossy().starts_with("PG") {
                    command.env_remove(variable);
                }
            }
            if let Some((user, group)) = user {
                command.uid(user).gid(group);
            }
            // The unprivileged user may have no access to the directory of this process, so the
            // program runs in another directory.
            command.env("LC_ALL", "C").env("HOME", folder).current_dir(folder);
            command
        };
        let data = folder.join("data");
        let made = match of {
            None => command("initdb")
                .args(["--auth=trust", "--username=postgres", "--encoding=UTF8", "--locale=C"])
                .args(["--no-sync", "--no-instructions", "--pgdata"])
                .arg(&data)
                .output()?,
            Some(of) => command("pg_basebackup")
                .args(["--checkpoint=fast", "--no-sync", "--dbname", &of.url("postgres")])
                .arg("--pgdata")
                .arg(&data)
                .output()?,
        };
        ensure!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr).trim());
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let log = folder.join("log");
        let mut server = command("postgres");
        server.arg("-D").arg(&data).args(["-c", &format!("port={port}")]);
        let further = CITUS_SETTINGS.iter().filter(|_| with_citus);
        for setting in SETTINGS.iter().chain(further) {
            server.args(["-c", setting]);
        }
        let given = self.settings.iter();
        for setting in given.filter(|setting| with_citus || !setting.starts_with("citus.")) {
            server.args(["-c", setting]);
        }
        let out = File::create(&log)?;
        server.stdin(Stdio::null()).stdout(out.try_clone()?).stderr(out).process_group(0);
        let mut child = server.spawn()?;
        run.remember_process("QUIT", child.id())?;
        let until = Instant::now() + START;
        while !is_ready(&data, child.id()) {
            let said = || fs::read_to_string(&log).unwrap_or_default();
            ensure!(child.try_wait()?.is_none(), "it has ended: {}", said().trim());
            ensure!(Instant::now() < until, "it takes longer than a minute: {}", said().trim());
            std::thread::sleep(LOOK_EVERY);
        }
        Ok(PostgresProcess { port, child })
    }
}

impl PostgresProcess {
    pub(in crate::cases) fn port(&self) -> u16 {
        self.port
    }

    /// Returns the URL of a database.
    pub(in crate::cases) fn url(&self, database: &str) -> String {
        url(self.port, database)
    }

    pub(in crate::cases) fn server(&self) -> anyhow::Result<SqlServer> {
        SqlServer::new(&self.url("postgres"))
    }

    /// Returns all processes of the server.
    pub(in crate::cases) fn processes(&self) -> ProcessTree {
        ProcessTree::new(self.child.id())
    }
}

/// Returns the URL of a database behind a port of loopback.
pub(in crate::cases) fn url(port: u16, database: &str) -> String {
    format!("postgres://postgres@127.0.0.1:{port}/{database}")
}

/// Returns whether the `postmaster.pid` of this process reports that the server accepts
/// connections.
fn is_ready(data: &Path, process: u32) -> bool {
    let text = fs::read_to_string(data.join("postmaster.pid")).unwrap_or_default();
    let mut lines = text.lines();
    lines.next() == Some(process.to_string().as_str())
        && lines.nth(6).is_some_and(|line| line.trim() == "ready")
}

/// Returns the major version of the server in this directory.
fn version(folder: &Path) -> Option<u32> {
    let output = Command::new(folder.join("postgres")).arg("--version").output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    text.split_whitespace().nth(2)?.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

/// Returns an unprivileged user and group if the owner of `ours` is root: the server refuses to run
/// as root.
fn unprivileged(ours: &Path) -> anyhow::Result<Option<(u32, u32)>> {
    if fs::metadata(ours)?.uid() != 0 {
        return Ok(None);
    }
    let users = fs::read_to_string("/etc/passwd").context("the list of users is not readable")?;
    let find = |name: &str| {
        let mut fields = users
            .lines()
            .map(|line| line.split(':'))
            .find_map(|mut fields| (fields.next() == Some(name)).then_some(fields))?;
        Some((fields.nth(1)?.parse().ok()?, fields.next()?.parse().ok()?))
    };
    let found = find("postgres").or_else(|| find("nobody"));
    Ok(Some(found.context("root may not run PostgreSQL, and there is no user `postgres`")?))
}
