//! A PgBouncer for tests.

use std::fs;
use std::net::TcpStream;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::server::free_port;
use crate::wait::until_ok;

/// A PgBouncer in front of a cluster. PgBouncer ends when this value is dropped, or when this
/// process ends.
#[derive(Debug)]
pub struct Pooler {
    port: u16,
    dir: PathBuf,
    process: Child,
}

/// A shell script that runs PgBouncer with the settings in $1, and ends PgBouncer when the script's
/// input ends.
const SCRIPT: &str = r#"
PATH="$PATH:/usr/sbin"
pgbouncer -q "$1" &
read -r _
kill -TERM $! 2>/dev/null
wait
"#;

impl Pooler {
    /// Whether PgBouncer is installed.
    pub fn is_installed() -> bool {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let mut folders = std::env::split_paths(&path).chain([PathBuf::from("/usr/sbin")]);
        folders.any(|folder| folder.join("pgbouncer").is_file())
    }

    /// Starts a PgBouncer in front of the server on `port`, in a new directory below `dir`.
    /// PgBouncer runs as the given user and group. Each setting is a line `name=value`.
    pub(crate) fn start(
        dir: &Path,
        server_port: u16,
        user: Option<(u32, u32)>,
        settings: &[&str],
    ) -> Self {
        let port = free_port();
        let dir = dir.join(format!("pooler-{port}"));
        let own = [
            "[databases]".into(),
            format!("* = host=127.0.0.1 port={server_port} user=postgres"),
            "[pgbouncer]".into(),
            "listen_addr=127.0.0.1".into(),
            format!("listen_port={port}"),
            "unix_socket_dir=".into(),
            "auth_type=any".into(),
            format!("logfile={}", dir.join("log").display()),
        ];
        fs::create_dir(&dir).expect("a directory for a pooler");
        let file = dir.join("pgbouncer.ini");
        let text = own.iter().map(String::as_str).chain(settings.iter().copied());
        fs::write(&file, text.collect::<Vec<_>>().join("\n")).expect("its settings");
        let mut command = Command::new("sh");
        if let Some((user, group)) = user {
            chown(&dir, Some(user), Some(group)).expect("gives the directory away");
            command.uid(user).gid(group);
        }
        command.args(["-c", SCRIPT, "pooler"]).arg(file).stdin(Stdio::piped()).process_group(0);
        let process = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("a shell");
        let pooler = Self { port, dir, process };
        until_ok(|| match TcpStream::connect(("127.0.0.1", port)) {
            Ok(_) => Ok(()),
            Err(_) => Err(format!("PgBouncer does not start: {}", pooler.log())),
        });
        pooler
    }

    /// Returns the address of a database behind the pooler.
    pub fn url(&self, database: &str) -> String {
        format!("postgres://postgres@127.0.0.1:{}/{database}", self.port)
    }

    /// Returns the pooler's log.
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&fs::read(self.dir.join("log")).unwrap_or_default()).into_owned()
    }
}

impl Drop for Pooler {
    fn drop(&mut self) {
        drop(self.process.stdin.take());
        let _ = self.process.wait();
    }
}
