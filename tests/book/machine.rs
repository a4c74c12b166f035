//! A machine on which the command lines of a page are run: a directory in place of the root
//! directory, and addresses of its own.

use std::fs::{self, File};
use std::net::TcpListener;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

use hark_testkit::clock::now_s;
use hark_testkit::folder::Folder;
use hark_testkit::http::HttpRequest;
use hark_testkit::nostr::{event_line, pubkey};
use hark_testkit::program::{Process, Program};
use hark_testkit::server::Server;
use hark_testkit::wait::{self, PATIENCE};
use serde_json::json;

use super::pages::CommandLine;
use super::shell;

/// The states of a machine that a mark can name.
pub(super) const STATES: [&str; 4] =
    ["an archive with events", "a running server", "a backup", "another relay"];

/// Directories of a machine.
const FOLDERS: [&str; 13] = [
    "etc/bash_completion.d",
    "etc/hark",
    "etc/systemd/system",
    "home/.config/fish/completions",
    "home/target/release",
    "mnt/backup",
    "opt/old",
    "srv",
    "tmp",
    "usr/local/bin",
    "usr/local/share/man",
    "usr/share/zsh/site-functions",
    "var/lib",
];

/// Beginnings of paths that are in the machine's directory.
const OF_ROOT: [&str; 8] =
    ["/etc/", "/mnt/", "/opt/", "/srv/", "/tmp/", "/usr/local/", "/usr/share/", "/var/lib/"];

/// The result of a command line.
pub(super) struct Ended {
    pub(super) code: i32,
    /// The output, and then the log.
    pub(super) output: String,
}

/// A machine. Dropping this value stops its servers and removes its directory.
pub(super) struct Machine {
    folder: Folder,
    /// Texts of the page, each with its replacement.
    replaced: Vec<(String, String)>,
    variables: Vec<(&'static str, String)>,
    /// Lines for the shell that precede each later line: variables and functions of the page.
    prelude: String,
    server: Option<Server>,
    other_relay: Option<Server>,
    /// The address of the other relay.
    other: String,
    /// Addresses of the REST interfaces.
    rest: [String; 2],
}

impl Machine {
    /// A machine with Hark, without an archive.
    pub(super) fn new() -> Self {
        let folder = Folder::new("book");
        let [own, second, waku, whisper, other] = std::array::from_fn(|_| unused_address());
        let root = folder.display().to_string();
        let mut replaced: Vec<(String, String)> = Vec::new();
        let mut replace = |from: &str, to: &str| replaced.push((from.into(), to.into()));
        for host in ["127.0.0.1", "0.0.0.0", "localhost"] {
            replace(&format!("{host}:7777"), &own);
        }
        replace("127.0.0.1:7778", &second);
        replace("127.0.0.1:8645", &waku);
        replace("127.0.0.1:8548", &whisper);
        replace("wss://relay.example.com", &format!("ws://{own}"));
        replace("https://relay.example.com", &format!("http://{own}"));
        for host in ["wss://relay.example", "wss://old.example", "wss://a.example"] {
            replace(host, &format!("ws://{other}"));
        }
        // Another name for the same relay.
        replace("wss://b.example", &format!("ws://{}", other.replace("127.0.0.1", "localhost")));
        replace("https://relay.example", &format!("http://{other}"));
        replace("10.0.0.2:7777", &other);
        replace("new.example:7777", &other);
        replace("npub1…", &pubkey(1));
        replace("<key>", &pubkey(1));
        replace("<64 hex digits>", &pubkey(1));
        replace("<128 hex digits>", &pubkey(1).repeat(2));
        replace(" WORD", " listen");
        replace(" COMMAND", " import");
        for path in OF_ROOT {
            replace(path, &format!("{root}{path}"));
        }
        let binary = Path::new(env!("CARGO_BIN_EXE_hark"));
        let programs = binary.parent().expect("a directory").display();
        let variables = vec![
            ("PATH", format!("{programs}:{}", std::env::var("PATH").unwrap_or_default())),
            ("HOME", format!("{root}/home")),
            ("TZ", "UTC".into()),
            // Requests of curl to this machine.
            ("no_proxy", "*".into()),
            ("HARK_CONFIG", format!("{root}/etc/hark/hark.toml")),
            ("HARK_SERVER_LISTEN", own),
            ("HARK_SEARCH_ENABLED", "true".into()),
            ("HARK_WAKU_SERVE", "true".into()),
            ("HARK_WAKU_CLUSTER", "2".into()),
            ("HARK_WAKU_REST", waku.clone()),
            ("HARK_WAKU_LISTEN", "/ip4/127.0.0.1/tcp/0".into()),
            ("HARK_WHISPER_SERVE", "true".into()),
            ("HARK_WHISPER_REST", whisper.clone()),
            ("HARK_WHISPER_LISTEN", "127.0.0.1:0".into()),
            ("HARK_WHISPER_POW_MIN", "0".into()),
        ];
        let machine = Self {
            folder,
            replaced,
            variables,
            prelude: String::new(),
            server: None,
            other_relay: None,
            other,
            rest: [waku, whisper],
        };
        machine.make_files();
        machine
    }

    /// Makes the directories and files that the pages name.
    fn make_files(&self) {
        for folder in FOLDERS {
            fs::create_dir_all(self.folder.join(folder)).expect("a directory is made");
        }
        let tree = Path::new(env!("CARGO_MANIFEST_DIR"));
        let binary = Path::new(env!("CARGO_BIN_EXE_hark"));
        let (docs, deploy) = (tree.join("docs"), tree.join("deploy"));
        for (target, link) in [
            (docs.as_path(), "home/docs"),
            (deploy.as_path(), "home/deploy"),
            (binary, "home/target/release/hark"),
            (binary, "opt/old/hark"),
        ] {
            symlink(target, self.folder.join(link)).expect("a link is made");
        }
        let data = self.folder.join("var/lib/hark");
        let settings = format!("[archive]\ndata = \"{}\"\n", data.display());
        self.folder.file("etc/hark/hark.toml", settings);
        let streams = format!("[streams.other]\nurls = [\"ws://{}\"]\n", self.other);
        self.folder.file("etc/hark/router.toml", &streams);
        self.folder.file("home/router.toml", &streams);
        for key in ["etc/hark/relay.key", "home/operator.key"] {
            self.folder.file(key, "11".repeat(32));
        }
        self.folder.file("home/members.txt", format!("{}\n", pubkey(1)));
        self.folder.file("home/hark.toml", "[info]\nname = \"My relay\"\n");
        // Makes curl fail if the HTTP status is an error.
        self.folder.file("home/.curlrc", "fail-with-body\n");
        let lines = events(40, "note");
        let packed = zstd::encode_all(lines.as_bytes(), 1).expect("is packed");
        for name in ["events.jsonl", "dump.jsonl", "more.jsonl.gz"] {
            // Hark detects compression by the content, not by the name.
            self.folder.file(&format!("home/{name}"), &lines);
        }
        for name in ["backup.jsonl.zst", "dump.jsonl.zst", "dump.zst", "more.jsonl.zst"] {
            self.folder.file(&format!("home/{name}"), &packed);
        }
        self.folder.file("home/messages.jsonl", messages());
        self.folder.file("home/envelopes.jsonl", envelopes());
        let envelope = crate::whisper::envelope([0x5c, 0x6c, 0x9b, 0x56], 20, b"sealed");
        self.folder.file("home/envelope.rlp", envelope);
        let strfry = self.folder.join("var/lib/strfry/strfry-db");
        fs::create_dir_all(&strfry).expect("a directory is made");
        let database = include_bytes!("../moving/strfry/data.mdb.zst");
        let database = zstd::decode_all(&database[..]).expect("is whole");
        fs::write(strfry.join("data.mdb"), database).expect("a file is written");
    }

    /// Brings the machine into a state that a mark names.
    pub(super) fn begin(&mut self, state: &str) -> Result<(), String> {
        self.succeed("hark import events.jsonl")?;
        if state == "a backup" {
            return self.back_up();
        }
        self.succeed("hark import --network waku messages.jsonl")?;
        self.succeed("hark import --network whisper envelopes.jsonl")?;
        match state {
            "an archive with events" => Ok(()),
            "a running server" => self.start_service(),
            "another relay" => self.start_other_relay(),
            _ => Err(format!("no state {state:?}; there are {STATES:?}")),
        }
    }

    /// Makes the backups that the pages name. The archive has only events.
    fn back_up(&self) -> Result<(), String> {
        self.succeed("hark backup /var/lib/hark-backup")?;
        self.succeed("mkdir /var/lib/hark-nights")?;
        for copy in
            ["/var/lib/hark-nights/2026-11-26", "/var/lib/hark-before-1.2.0", "/mnt/backup/hark"]
        {
            self.succeed(&format!("cp -r /var/lib/hark-backup {copy}"))?;
        }
        self.succeed("hark backup /mnt/backup/monday.hark")
    }

    fn succeed(&self, line: &str) -> Result<(), String> {
        let Ended { code, output } = self.run(line)?;
        if code == 0 { Ok(()) } else { Err(format!("`{line}` ends with {code}: {output}")) }
    }

    /// The text of a page with the machine's own paths and addresses.
    pub(super) fn real(&self, text: &str) -> String {
        let (mut real, mut rest) = (String::new(), text);
        'next: while let Some(first) = rest.chars().next() {
            // A slash begins an absolute path only if no part of a path precedes the slash.
            let is_inner = real.ends_with(|c: char| c.is_alphanumeric() || ".~-_/".contains(c));
            for (from, to) in &self.replaced {
                if rest.starts_with(from.as_str()) && !(is_inner && first == '/') {
                    real.push_str(to);
                    rest = &rest[from.len()..];
                    continue 'next;
                }
            }
            real.push(first);
            rest = &rest[first.len_utf8()..];
        }
        real
    }

    /// A shell that runs a line of a page.
    fn shell(&self, line: &str) -> Program {
        let script = format!("set -e -o pipefail\n{}{}", self.prelude, self.real(line));
        let mut program = Program::new("bash");
        program.args(["-c", &script]).current_dir(self.folder.join("home"));
        program.envs(self.variables.iter().map(|(name, value)| (*name, value)));
        program
    }

    /// Runs a line to its end.
    fn run(&self, line: &str) -> Result<Ended, String> {
        let path = self.folder.join("output");
        let out = File::create(&path).expect("a file is made");
        let mut process = self.shell(line).stdout(out).spawn().expect("bash runs");
        let status = process.wait_for_end(PATIENCE);
        let output = fs::read(&path).expect("a file is read");
        let output = format!("{}{}", String::from_utf8_lossy(&output), process.log());
        let status = status.ok_or_else(|| format!("does not end: {output}"))?;
        Ok(Ended { code: status.code().unwrap_or(-1), output })
    }

    /// Runs a command line of a page. A server serves until the page starts another server, and a
    /// command that does not end by itself is interrupted once it works.
    pub(super) fn run_line(&mut self, command: &CommandLine) -> Result<Ended, String> {
        let line = &command.text;
        let commands = shell::commands(line);
        let is_definition = line.contains("() {")
            || commands.iter().all(|words| {
                words[0] == "export" || words.iter().all(|word| shell::is_assignment(word))
            });
        if is_definition {
            self.prelude = format!("{}{}\n", self.prelude, self.real(line));
            return self.run("true");
        }
        let of_hark = commands.iter().find_map(|words| shell::arguments_of_hark(words));
        let has = |wanted: &str, words: &[String]| words.iter().any(|word| word == wanted);
        match of_hark.and_then(shell::command_of_hark) {
            Some(("serve", flags)) => self.serve(line, has("--takeover", flags)),
            Some(("stream", _)) => self.interrupt(line, "a stream is connected"),
            Some(("router", flags)) if !has("--check", flags) => {
                self.interrupt(line, "a stream is connected")
            }
            Some(("adopt", flags)) if has("--follow", flags) => {
                self.interrupt(line, "new events follow until Ctrl-C")
            }
            _ => self.run(line),
        }
    }

    /// Returns a shell that replaces itself with the line's program (`exec`), so that the program
    /// receives the signals.
    fn replaced_shell(&self, line: &str) -> Program {
        let line = match line.strip_prefix("hark ") {
            Some(rest) => format!("exec hark {rest}"),
            None => line.replacen(" hark ", " exec hark ", 1),
        };
        self.shell(&line)
    }

    fn serve(&mut self, line: &str, takes_over: bool) -> Result<Ended, String> {
        if !takes_over {
            self.stop_service()?;
        }
        let server = Server::try_start(&mut self.replaced_shell(line), |_| true);
        let server = server.map_err(|process| format!("does not serve: {}", process.log()))?;
        self.server = Some(server);
        Ok(Ended { code: 0, output: String::new() })
    }

    /// Runs a line until its log has this text, and then interrupts the program.
    fn interrupt(&self, line: &str, said: &str) -> Result<Ended, String> {
        let out = File::create(self.folder.join("output")).expect("a file is made");
        let mut process = self.replaced_shell(line).stdout(out).spawn().expect("bash runs");
        let (mut is_said, mut is_running) = (false, true);
        wait::holds_within(PATIENCE, || {
            is_running = process.try_wait().expect("is ours").is_none();
            is_said = process.log().contains(said);
            is_said || !is_running
        });
        if is_said && is_running {
            process.signal("INT");
        } else {
            return Err(format!("does not log {said:?}: {}", process.log()));
        }
        end(&mut process)
    }

    /// Starts or stops the machine's server, as a line with `systemctl` would start or stop the
    /// service.
    pub(super) fn follow_systemd(&mut self, line: &str) -> Result<(), String> {
        for words in shell::commands(line) {
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            let words = words.strip_prefix(&["sudo"]).unwrap_or(&words[..]);
            let ["systemctl", verb, units @ ..] = words else { continue };
            if !units.contains(&"hark") {
                continue;
            }
            match *verb {
                "stop" | "disable" => self.stop_service()?,
                "start" | "enable" if self.server.is_none() => self.start_service()?,
                "restart" => {
                    self.stop_service()?;
                    self.start_service()?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn stop_service(&mut self) -> Result<(), String> {
        let Some(server) = self.server.take() else { return Ok(()) };
        match server.terminate() {
            (0, _) => Ok(()),
            (code, log) => Err(format!("the server ends with {code}: {log}")),
        }
    }

    fn start_service(&mut self) -> Result<(), String> {
        // The command line of the unit in deploy/.
        self.serve("hark --data /var/lib/hark serve", false)?;
        for rest in &self.rest {
            let is_open = || HttpRequest::new("GET", "/openapi.json").try_send(rest).is_ok();
            if !wait::holds_within(PATIENCE, is_open) {
                return Err(format!("nothing answers on {rest}"));
            }
        }
        Ok(())
    }

    /// Starts a relay that has events of its own.
    fn start_other_relay(&mut self) -> Result<(), String> {
        self.folder.file("srv/other.jsonl", events(20, "other"));
        self.succeed("hark --data /srv/other import /srv/other.jsonl")?;
        let line = format!("hark --data /srv/other serve --listen {}", self.other);
        let mut program = self.replaced_shell(&line);
        program.env("HARK_WAKU_SERVE", "false").env("HARK_WHISPER_SERVE", "false");
        let server = Server::try_start(&mut program, |_| true);
        let server = server.map_err(|process| format!("no other relay: {}", process.log()))?;
        self.other_relay = Some(server);
        Ok(())
    }

    /// Stops all servers of the machine.
    pub(super) fn end(mut self) -> Result<(), String> {
        self.other_relay = None;
        self.stop_service()
    }
}

/// Returns an address that nothing listens on. Its port is below the ports that the system chooses
/// for sockets of other tests, so the port stays free until a page uses the port.
fn unused_address() -> String {
    static TRIED: AtomicU32 = AtomicU32::new(0);
    loop {
        let tried = TRIED.fetch_add(1, Ordering::Relaxed);
        let port = 20_000 + std::process::id().wrapping_mul(61).wrapping_add(tried) % 12_000;
        let address = format!("127.0.0.1:{port}");
        if TcpListener::bind(&address).is_ok() {
            return address;
        }
    }
}

/// Waits for the end of an interrupted program.
fn end(process: &mut Process) -> Result<Ended, String> {
    let status = process.wait_for_end(PATIENCE);
    let output = process.log();
    let status = status.ok_or_else(|| format!("is interrupted and does not end: {output}"))?;
    Ok(Ended { code: status.code().unwrap_or(-1), output })
}

/// Events of several kinds of a few people, from the last hour.
fn events(count: u64, text: &str) -> String {
    let at = now_s() - 1_800;
    let person = pubkey(2);
    let mut lines = String::new();
    for n in 0..count {
        let content = format!("{text} {n} about bread and sour dough");
        let who = (n % 5 + 1) as u8;
        lines += &event_line(who, at + n, 1, &[&["t", "nostr"], &["p", &person]], &content);
    }
    for who in 1..=5 {
        lines += &event_line(who, at, 0, &[], "{}");
        lines += &event_line(who, at, 3, &[&["p", &person]], "");
        lines += &event_line(who, at, 4, &[&["p", &person]], text);
    }
    lines
}

/// Lines for an import of Waku's messages.
fn messages() -> String {
    let line = |n: u64| {
        let timestamp = (now_s() - 60 - n) * 1_000_000_000;
        let topic = "/app/1/chat/proto";
        let message =
            json!({ "payload": "aGFyaw==", "contentTopic": topic, "timestamp": timestamp });
        format!("{}\n", json!({ "message": message, "pubsubTopic": "/waku/2/rs/2/0" }))
    };
    (0..10).map(line).collect()
}

/// Lines for an import of Whisper's envelopes.
fn envelopes() -> String {
    let line = |n: u64| {
        let expiry = now_s() + 50 - n;
        let topic = "0x5c6c9b56";
        let fields =
            json!({ "expiry": expiry, "ttl": 50, "topic": topic, "data": "0x17", "nonce": 1 });
        format!("{fields}\n")
    };
    (0..10).map(line).collect()
}
