//! A throwaway PgBouncer before a [`Cluster`], in session mode and otherwise as Debian's package has it.
//! Like the cluster, it ends with the process that started it, however that process ends.

use std::fs;
use std::net::TcpStream;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::postgres::{Cluster, free_port};

/// How long a start may take. Machines that run tests are busy.
const START: Duration = Duration::from_mins(1);
/// Runs the pooler until the end of its input, which is the end of the process that started it.
const GUARD: &str = r#"
trap '' INT TERM HUP
"$1" "$2/pgbouncer.ini" </dev/null &
read -r _
kill -KILL "$!"
"#;

/// A running pooler.
pub struct Pooler {
    dir: PathBuf,
    port: u16,
    guard: Child,
}

impl Pooler {
    /// Returns the program, if it is installed.
    fn program() -> Option<PathBuf> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let usual = [PathBuf::from("/usr/sbin")];
        let mut folders = std::env::split_paths(&path).chain(usual);
        folders.find_map(|folder| Some(folder.join("pgbouncer")).filter(|file| file.is_file()))
    }

    /// Whether PgBouncer is installed.
    pub fn is_installed() -> bool {
        Self::program().is_some()
    }

    /// Starts a pooler, and returns once it accepts connections.
    pub fn start(cluster: &Cluster) -> Self {
        let program =
            Self::program().expect("Debian's package `pgbouncer`, as scripts/test has it");
        let port = free_port();
        let name = format!("hark-pooler-{}-{port}", std::process::id());
        let dir = std::env::temp_dir().join(name);
        fs::create_dir_all(&dir).expect("a directory for a pooler");
        let settings = format!(
            "[databases]\n* = host=127.0.0.1 port={} user=postgres\n[pgbouncer]\n\
             listen_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\nauth_type = any\n\
             pool_mode = session\nmax_client_conn = 400\ndefault_pool_size = 90\nlogfile = {}\n",
            cluster.port(),
            dir.join("log").display(),
        );
        fs::write(dir.join("pgbouncer.ini"), settings).expect("is written");
        let mut command = Command::new("sh");
        command.args(["-c", GUARD, "guard"]).arg(program).arg(&dir);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        if let Some((user, group)) = cluster.user() {
            chown(&dir, Some(user), Some(group)).expect("gives the directory away");
            command.uid(user).gid(group).current_dir(&dir);
        }
        let pooler = Self { guard: command.spawn().expect("a shell"), dir, port };
        let until = Instant::now() + START;
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(Instant::now() < until, "the pooler does not start: {}", log(&pooler.dir));
            std::thread::sleep(Duration::from_millis(20));
        }
        pooler
    }

    /// Returns the address of a database behind the pooler.
    pub fn url(&self, database: &str) -> String {
        format!("postgres://postgres@127.0.0.1:{}/{database}", self.port)
    }
}

fn log(dir: &Path) -> String {
    String::from_utf8_lossy(&fs::read(dir.join("log")).unwrap_or_default()).into_owned()
}

impl Drop for Pooler {
    fn drop(&mut self) {
        drop(self.guard.stdin.take());
        let _ = self.guard.wait();
        let _ = fs::remove_dir_all(&self.dir);
    }
}
