//! A PostgreSQL for tests: a cluster in a temporary directory, on a free loopback port, with a
//! separate database for each test. The cluster can be stopped, killed and started again.
//!
//! The cluster ends with the process that started it, even after a panic or a `kill -9`. To achieve
//! this, a shell reads from a pipe that only this process holds open. When the process ends, the
//! pipe closes, and the shell stops the server and removes the directory. So nothing is left
//! behind, although the cluster that all tests share is never dropped.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::pooler::Pooler;
use crate::server::free_port;
use crate::skipped::skip;

/// The oldest version that Hark supports.
const VERSION_MIN: u32 = 15;
/// How long a start may take. The time is long, because machines that run tests are busy.
const START: Duration = Duration::from_mins(3);
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// The shell script that waits for the end of its input, and then stops the server. The input ends
/// when the process that started the script ends. Process ids are reused, so the script first
/// checks that the process is the server of this directory.
const GUARD: &str = r#"
trap '' INT TERM HUP
read -r _
if pid=$(head -n 1 "$1/data/postmaster.pid" 2>/dev/null) && grep -qF "$1" "/proc/$pid/cmdline"; then
    kill -QUIT "$pid"
    tries=0
    while [ -e "$1/data/postmaster.pid" ] && [ "$tries" -lt 100 ]; do
        sleep 0.1
        tries=$((tries + 1))
    done
fi
rm -rf "$1"
"#;

/// A server with an empty cluster.
pub struct Cluster {
    programs: PathBuf,
    dir: PathBuf,
    port: u16,
    /// User and group of the server; set if this process runs as root, because the server refuses
    /// to run as root.
    user: Option<(u32, u32)>,
    settings: Vec<String>,
    server: Mutex<Option<Child>>,
    guard: Child,
    databases: AtomicU32,
}

/// A database for one test. Dropping this value removes the database.
pub struct Database<'a> {
    /// The address of the database: `postgres://…`.
    pub url: String,
    /// The name of the database in the cluster.
    pub name: String,
    /// The cluster of the database.
    pub cluster: &'a Cluster,
}

impl Cluster {
    /// Returns the cluster that all tests of this process share. The cluster keeps running. It does
    /// not sync to disk, since its data need not survive a power cut.
    pub fn shared() -> &'static Self {
        static SHARED: LazyLock<Cluster> = LazyLock::new(Cluster::new);
        &SHARED
    }

    /// Starts a separate cluster, for a test that stops or changes the cluster.
    pub fn new() -> Self {
        Self::with(&["fsync=off"])
    }

    /// Starts a cluster with these settings, each as `name=value`.
    pub fn with(settings: &[&str]) -> Self {
        let cluster = Self::prepare(settings.iter().map(|setting| (*setting).to_owned()).collect());
        let mut initdb = cluster.program("initdb");
        initdb
            .args(["--auth=trust", "--username=postgres", "--encoding=UTF8", "--locale=C"])
            .args(["--no-sync", "--no-instructions", "--pgdata"]);
        cluster.make(initdb.arg(cluster.data()));
        cluster
    }

    /// Starts a streaming replica of this cluster.
    #[must_use]
    pub fn replica(&self) -> Self {
        let cluster = Self::prepare(self.settings.clone());
        let mut backup = cluster.program("pg_basebackup");
        backup
            .args(["--write-recovery-conf", "--checkpoint=fast", "--no-sync", "--dbname"])
            .args([&self.url("postgres"), "--pgdata"]);
        cluster.make(backup.arg(cluster.data()));
        cluster
    }

    /// Creates the directory of a cluster and starts its guard. The cluster has no files yet, and
    /// its server does not run yet.
    fn prepare(settings: Vec<String>) -> Self {
        static CLUSTERS: AtomicU32 = AtomicU32::new(0);
        let number = CLUSTERS.fetch_add(1, Ordering::Relaxed);
        let name = format!("hark-postgres-{}-{number}", std::process::id());
        let dir = std::env::temp_dir().join(name);
        // An earlier process with the same id may have left its directory behind.
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir(&dir).expect("a directory for a cluster");
        let guard = Command::new("sh")
            .args(["-c", GUARD, "guard"])
            .arg(&dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // An interrupt from the keyboard must not end the shell, because the shell has to clean
            // up.
            .process_group(0)
            .spawn()
            .expect("a shell");
        let user = unprivileged(&dir);
        if let Some((user, group)) = user {
            chown(&dir, Some(user), Some(group)).expect("gives the directory away");
        }
        Self {
            programs: programs(),
            port: free_port(),
            user,
            settings,
            server: Mutex::new(None),
            guard,
            databases: AtomicU32::new(0),
            dir,
        }
    }

    /// Runs the command that creates the cluster's files, and starts the server.
    fn make(&self, command: &mut Command) {
        let made = command.output().expect("PostgreSQL's programs run");
        let said = String::from_utf8_lossy(&made.stderr);
        assert!(made.status.success(), "{command:?}: {said}");
        self.start();
    }

    /// Starts the server, and returns when it accepts connections. If the server is already
    /// running, does nothing.
    pub fn start(&self) {
        let until = Instant::now() + START;
        while self.server.lock().is_none() {
            let log = fs::File::options().create(true).append(true).open(self.log_file());
            let log = log.expect("a log");
            let mut command = self.program("postgres");
            command.arg("-D").arg(self.data());
            let own = [
                format!("port={}", self.port),
                "listen_addresses=127.0.0.1".into(),
                "unix_socket_directories=".into(),
                "max_connections=200".into(),
            ];
            for setting in own.iter().chain(&self.settings) {
                command.args(["-c", setting]);
            }
            let copy = log.try_clone().expect("a log");
            command.stdin(Stdio::null()).stdout(copy).stderr(log).process_group(0);
            let mut child = command.spawn().expect("postgres starts");
            let ready = loop {
                if self.is_ready(child.id()) {
                    break true;
                }
                // After a kill, the server starts only once all its old processes are gone.
                if child.try_wait().expect("is ours").is_some() {
                    break false;
                }
                assert!(Instant::now() < until, "postgres does not start: {}", self.log());
                std::thread::sleep(LOOK_EVERY);
            };
            if ready {
                *self.server.lock() = Some(child);
            }
            assert!(ready || Instant::now() < until, "postgres does not start: {}", self.log());
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// Shuts the server down, which closes all connections, and waits until it has ended.
    pub fn stop(&self) {
        if let Some(mut server) = self.server.lock().take() {
            signal("INT", &[server.id()]);
            server.wait().expect("is ours");
        }
    }

    /// Kills the server and all of its processes with -9.
    pub fn kill(&self) {
        if let Some(mut server) = self.server.lock().take() {
            // The main process is killed first, because it would restart the other processes.
            let others = children(server.id());
            signal("KILL", &[server.id()]);
            server.wait().expect("is ours");
            signal("KILL", &others);
        }
    }

    /// Suspends all server processes (SIGSTOP), so that the server does not answer, but its
    /// connections stay open.
    pub fn pause(&self) {
        self.signal_all("STOP");
    }

    /// Resumes all processes of the server (SIGCONT).
    pub fn resume(&self) {
        self.signal_all("CONT");
    }

    /// Returns whether this extension's files are installed.
    pub fn has_extension(name: &str) -> bool {
        let output = Command::new(programs().join("pg_config")).arg("--sharedir").output();
        let listed = output.ok().filter(|output| output.status.success());
        let folder = listed.and_then(|output| String::from_utf8(output.stdout).ok());
        let version = version(&programs()).unwrap_or(VERSION_MIN);
        // Debian ships pg_config in a separate package. Without pg_config, Debian's folder is used.
        let folder = folder.unwrap_or_else(|| format!("/usr/share/postgresql/{version}"));
        Path::new(folder.trim()).join("extension").join(format!("{name}.control")).is_file()
    }

    /// Starts a PgBouncer with these settings, each as `name=value`. If PgBouncer is not installed,
    /// returns `None`, and the running test counts as skipped.
    pub fn pooler(&self, settings: &[&str]) -> Option<Pooler> {
        if !Pooler::is_installed() {
            skip("PgBouncer is not installed here");
            return None;
        }
        Some(Pooler::start(&self.dir, self.port, self.user, settings))
    }

    /// Returns the server's log.
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&fs::read(self.log_file()).unwrap_or_default()).into_owned()
    }

    /// Returns the address of a database.
    pub fn url(&self, database: &str) -> String {
        format!("postgres://postgres@127.0.0.1:{}/{database}", self.port)
    }

    /// The port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Creates a database for a test with this name.
    pub fn database(&self, test: &str) -> Database<'_> {
        let number = self.databases.fetch_add(1, Ordering::Relaxed);
        let name: String = test.chars().filter(char::is_ascii_alphanumeric).take(40).collect();
        let name = format!("{}_{number}", name.to_lowercase());
        self.sql("postgres", &format!("CREATE DATABASE {name}"));
        Database { url: self.url(&name), name, cluster: self }
    }

    /// Writes a file that only the server can read to the server's data directory, and reloads the
    /// server's settings.
    pub fn file(&self, name: &str, text: &str) {
        let file = self.data().join(name);
        fs::write(&file, text).expect("a file of the server's");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("is ours");
        if let Some((user, group)) = self.user {
            chown(&file, Some(user), Some(group)).expect("gives the file away");
        }
        self.sql("postgres", "SELECT pg_reload_conf()");
    }

    /// Returns the command for one of PostgreSQL's programs. It runs as the server's user.
    pub fn program(&self, name: &str) -> Command {
        let mut command = Command::new(self.programs.join(name));
        for (variable, _) in std::env::vars_os() {
            if variable.to_string_lossy().starts_with("PG") {
                command.env_remove(variable);
            }
        }
        if let Some((user, group)) = self.user {
            command.uid(user).gid(group);
        }
        // The server's user may have no access to the tests' working directory, so the program runs
        // in another directory.
        command.env("LC_ALL", "C").env("HOME", &self.dir).current_dir(&self.dir);
        // With a timeout, a test that fails while the server is suspended still ends.
        command.env("PGCONNECT_TIMEOUT", "60");
        command
    }

    /// Promotes a replica to primary, and returns once the replica accepts writes.
    pub fn promote(&self) {
        self.sql("postgres", "SELECT pg_promote()");
    }

    /// Does the same as [`Cluster::sql`], but returns the error message of `psql`.
    pub fn try_sql(&self, database: &str, sql: &str) -> Result<String, String> {
        let output = self
            .program("psql")
            .args(["-XqAt", "-v", "ON_ERROR_STOP=1", "-d", &self.url(database), "-c", sql])
            .output()
            .expect("psql runs");
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).into_owned());
        }
        Ok(String::from_utf8(output.stdout).expect("is text").trim_end().to_owned())
    }

    /// Runs SQL in a database. Returns the rows as lines, with `|` between the values.
    pub fn sql(&self, database: &str, sql: &str) -> String {
        self.try_sql(database, sql).unwrap_or_else(|error| panic!("{sql}: {error}"))
    }

    fn signal_all(&self, name: &str) {
        let server = self.server.lock().as_ref().expect("runs").id();
        signal(name, &[server]);
        signal(name, &children(server));
    }

    fn data(&self) -> PathBuf {
        self.dir.join("data")
    }

    fn log_file(&self) -> PathBuf {
        self.dir.join("log")
    }

    /// Returns whether the server with this process id accepts connections, according to
    /// `postmaster.pid`.
    fn is_ready(&self, process: u32) -> bool {
        let text = fs::read_to_string(self.data().join("postmaster.pid")).unwrap_or_default();
        let mut lines = text.lines();
        lines.next() == Some(process.to_string().as_str())
            && lines.nth(6).is_some_and(|line| line.trim() == "ready")
    }
}

impl Default for Cluster {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.kill();
        // The guard removes the directory when its input ends.
        drop(self.guard.stdin.take());
        let _ = self.guard.wait();
    }
}

impl Database<'_> {
    /// Runs SQL. Returns the rows as lines, with `|` between the values.
    pub fn sql(&self, sql: &str) -> String {
        self.cluster.sql(&self.name, sql)
    }
}

impl Drop for Database<'_> {
    fn drop(&mut self) {
        // A failure is ignored: if the server does not run, its whole cluster is soon removed.
        let sql = format!("DROP DATABASE IF EXISTS {} WITH (FORCE)", self.name);
        let _ = self.cluster.try_sql("postgres", &sql);
    }
}

/// Returns the directory with the programs of the newest installed version.
fn programs() -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let packaged = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let folders = std::env::split_paths(&path).chain(packaged.map(|of| of.path().join("bin")));
    let whole = |folder: &PathBuf| {
        ["postgres", "initdb", "psql"].iter().all(|name| folder.join(name).is_file())
    };
    let newest = folders.filter(whole).filter_map(|folder| Some((version(&folder)?, folder))).max();
    match newest {
        Some((version, folder)) if version >= VERSION_MIN => folder,
        other => panic!(
            "PostgreSQL {VERSION_MIN} or newer is needed, with initdb and psql: install Debian's \
             package `postgresql`, as scripts/test does; found: {other:?}"
        ),
    }
}

/// Returns the major version of the server in this directory.
fn version(folder: &Path) -> Option<u32> {
    let output = Command::new(folder.join("postgres")).arg("--version").output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    text.split_whitespace().nth(2)?.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

/// Returns an unprivileged user and its group if this process runs as root, which then owns `ours`.
fn unprivileged(ours: &Path) -> Option<(u32, u32)> {
    if fs::metadata(ours).expect("was made").uid() != 0 {
        return None;
    }
    let users = fs::read_to_string("/etc/passwd").expect("users");
    let find = |name: &str| {
        let mut fields = users
            .lines()
            .map(|line| line.split(':'))
            .find_map(|mut fields| (fields.next() == Some(name)).then_some(fields))?;
        Some((fields.nth(1)?.parse().ok()?, fields.next()?.parse().ok()?))
    };
    Some(find("postgres").or_else(|| find("nobody")).expect("somebody who is not root"))
}

fn children(process: u32) -> Vec<u32> {
    let list = fs::read_to_string(format!("/proc/{process}/task/{process}/children"));
    list.unwrap_or_default().split_whitespace().filter_map(|number| number.parse().ok()).collect()
}

/// Sends a signal to processes. Processes that have already ended are ignored.
fn signal(name: &str, processes: &[u32]) {
    if !processes.is_empty() {
        let numbers = processes.iter().map(u32::to_string);
        let sent = Command::new("kill").arg(format!("-{name}")).args(numbers).output();
        sent.expect("there is `kill`");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_keeps_what_it_has_across_stops_and_kills_and_leaves_nothing_behind() {
        let cluster = Cluster::new();
        let (one, two) = (cluster.database("a test"), cluster.database("a test"));
        one.sql("CREATE TABLE t (n int); INSERT INTO t VALUES (1)");
        two.sql("CREATE TABLE t (n int)");
        cluster.stop();
        assert!(cluster.try_sql(&one.name, "SELECT 1").is_err());
        cluster.start();
        one.sql("INSERT INTO t VALUES (2)");
        cluster.kill();
        cluster.start();
        assert_eq!(one.sql("SELECT count(*), max(n) FROM t"), "2|2");
        assert_eq!(two.sql("SELECT count(*) FROM t"), "0");
        cluster.pause();
        cluster.resume();
        let gone = one.name.clone();
        drop(one);
        let left = cluster.sql("postgres", "SELECT datname FROM pg_database");
        assert!(!left.contains(&gone) && left.contains(&two.name), "{left}");
        let server = cluster.server.lock().as_ref().unwrap().id();
        let dir = cluster.dir.clone();
        drop(two);
        drop(cluster);
        assert!(!dir.exists() && !Path::new(&format!("/proc/{server}")).exists());
    }
}
