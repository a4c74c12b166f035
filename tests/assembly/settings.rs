//! Starts the binary with each documented setting at its default, its least, its most and an odd
//! value. The value comes from a file, from the environment or by a reload.
//!
//! Either the value is accepted, and the server answers and ends normally, or the value is refused
//! with the setting's name. Nothing panics or hangs.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::ErrorKind;
use std::path::PathBuf;

use hark_testkit::folder::Folder;
use hark_testkit::http::{HttpRequest, get};
use hark_testkit::postgres::Cluster;
use hark_testkit::program::Process;
use hark_testkit::server::Server;
use hark_testkit::wait::{PATIENCE, until_ok};

use crate::setting_values::{
    CLIENT, DIRECTORY, DOMAINS, ENODES, FEES, GROUPS, KEY, KEYS, LINK, LISTEN, ORIGINS, PEERS,
    ROLES, RULES, SIGNED, URL, WORD,
};
use crate::world::{forget, number, program, tail};

/// Settings that are no numbers: section and name, then the least, the most and an odd value, as
/// TOML. A list that ends with `…` is repeated up to its bound.
const WORDS: &[(&str, &str, [&str; 3])] = &[
    ("server", "listen", LISTEN),
    ("server", "metrics_listen", ["\"\"", "\"0.0.0.0:0\"", "\"127.0.0.1:0\""]),
    ("server", "metrics_allow", ["[]", "[\"0.0.0.0/0\", \"::/0\"]", "[\"127.0.0.1\"]"]),
    ("server", "trusted_proxies", ["[]", "[\"0.0.0.0/0\", \"::/0\"]", "[\"192.0.2.7\"]"]),
    ("server", "proxy_header", ["\"forwarded\"", "\"x-forwarded-for\"", "\"x-real-ip\""]),
    ("tls", "certificate", ["\"\"", "\"a very/long path/of a.pem\"", "\"a.pem\""]),
    ("tls", "key", ["\"\"", "\"/a very/long path/of a.pem\"", "\"a.pem\""]),
    ("tls", "acme_domains", ["[]", "[\"*.relay.example\"]", "[\"relay.example\", \"no name\"]"]),
    ("tls", "acme_contact", ["\"\"", "\"mailto:me@relay.example\"", "\"me@relay.example\""]),
    ("tls", "acme_directory", DIRECTORY),
    ("tls", "relay", ["false", "true", "\"yes\""]),
    ("tls", "rest", ["false", "true", "\"yes\""]),
    ("archive", "data", ["\"d\"", "\"a/b/c/d/e/f\"", "\"with blanks and ü\""]),
    ("archive", "store", ["\"embedded\"", "DATABASE", "\"mysql://x\""]),
    ("postgres", "read_url", ["\"\"", "DATABASE", "\"postgres://nobody@127.0.0.1:1/none\""]),
    ("postgres", "migrate", ["false", "true", "\"perhaps\""]),
    ("privacy", "kinds", ["[]", "[0, \"1-65535\"]", "[4]"]),
    ("policy", "allow_addresses", ["[\"*\"]", "[\"0.0.0.0/0\", \"::/0\"]", "[\"127.0.0.0/8\"]"]),
    ("policy", "deny_addresses", ["[]", "[\"0.0.0.0/0\"]", "[\"192.0.2.0/24\"]"]),
    ("policy", "allow_keys", ["[\"*\"]", KEYS, "[\"@missing.txt\"]"]),
    ("policy", "addressed_kinds", ["[]", "[\"0-65535\"]", "[1059]"]),
    ("policy", "open_kinds", ["[]", "[\"0-65535\"]", "[3]"]),
    ("policy", "deny_keys", ["[]", KEYS, "[\"npub1x\"]"]),
    ("policy", "allow_kinds", ["[]", "[\"0-65535\"]", "[1]"]),
    ("policy", "deny_kinds", ["[]", "[\"0-65535\"]", "[\"7-3\"]"]),
    ("policy", "allow_words", ["[\"*\"]", "[\"a\", \"ü*\", \"*x*\"]", "[\"\"]"]),
    ("policy", "deny_words", ["[]", "[\"a\", \"ü*\", \"*x*\"]", "[\"*\"]"]),
    ("trust", "mode", ["\"off\"", "\"require\"", "\"watch\""]),
    ("trust", "roots", ["[]", KEYS, "[\"npub1x\"]"]),
    ("rates", "spared_addresses", ["[]", "[\"0.0.0.0/0\", \"::/0\"]", "[\"192.0.2.7\"]"]),
    ("rates", "groups", GROUPS),
    ("rates", "spared_keys", ["[]", KEYS, "[\"npub1x\"]"]),
    ("manage", "keys", ["[]", KEYS, "[\"npub1x\"]"]),
    ("manage", "page", ["false", "true", "\"yes\""]),
    ("manage", "roles", ROLES),
    ("info", "self", ["\"\"", KEY, "\"abc\""]),
    ("self", "report", ["false", "true", "\"yes\""]),
    ("self", "members", ["false", "true", "\"yes\""]),
    ("self", "key_file", ["\"\"", "\"a/b/relay.key\"", "\"relay.key\""]),
    ("policy", "wraps_need_auth", ["false", "true", "\"yes\""]),
    ("policy", "members_only_kinds", ["[]", "[\"*\"]", "[\"1-1001\"]"]),
    ("policy", "members_only_except_own", ["false", "true", "\"yes\""]),
    ("policy", "question_kinds", ["[]", "[\"30000-30999\"]", "[7, \"*\"]"]),
    ("policy", "narrow_questions", ["false", "true", "\"yes\""]),
    ("plugin", "command", ["\"\"", "\"exec cat >/dev/null; echo a long one\"", "\"./missing\""]),
    ("plugin", "on_failure", ["\"accept\"", "\"refuse\"", "\"perhaps\""]),
    ("names", "mode", ["\"off\"", "\"require\"", "\"always\""]),
    ("names", "domains_allowed", DOMAINS),
    ("names", "domains_denied", DOMAINS),
    ("retention", "delete_brought", ["false", "true", "\"yes\""]),
    ("whisper", "envelopes", ["[0, 0]", "[1000000000000, 1000000000000]", "[7, 11]"]),
    ("whisper", "new_topics", ["[0, 0]", "[1000000000000, 1000000000000]", "[7, 11]"]),
    ("whisper", "bytes_max", ["0", "9223372036854775807", "\"50GB\""]),
    ("search", "enabled", ["false", "true", "\"yes\""]),
    ("search", "kinds", ["[]", "[\"0-65535\"]", "[1]"]),
    (
        "search",
        "parts",
        ["[]", "[\"content\", \"titles\", \"hashtags\", \"profiles\"]", "[\"all\"]"],
    ),
    ("info", "name", WORD),
    ("info", "description", WORD),
    ("info", "url", URL),
    ("info", "other_urls", ["[]", "[\"ws://a.onion\", \"wss://b.example/c\"]", "[\"http://a\"]"]),
    ("info", "pubkey", ["\"\"", KEY, "\"abc\""]),
    ("info", "contact", WORD),
    ("info", "icon", LINK),
    ("info", "banner", LINK),
    ("info", "terms_of_service", LINK),
    ("info", "payments_url", LINK),
    ("info", "terms", WORD),
    ("info", "privacy", WORD),
    ("info", "joining", WORD),
    ("info", "client_url", CLIENT),
    ("info", "fees", FEES),
    ("retention", "erase_within", ["\"0s\"", "\"100y\"", "\"1s\""]),
    ("retention", "spared_kinds", ["[]", "[\"0-65535\"]", "[5, 62]"]),
    ("retention", "rules", ["[]", RULES, "[{ older_than = \"0d\" }]"]),
    ("mirror", "store", ["\"\"", "\"mirror\"", "DATABASE"]),
    ("waku", "serve", ["false", "true", "1"]),
    ("waku", "rest", ["\"\"", "\"0.0.0.0:0\"", "\"127.0.0.1:0\""]),
    ("waku", "rest_allow_origin", ORIGINS),
    ("waku", "rest_hosts", ["[]", "[\"*\"]", "[\"waku.example\"]"]),
    ("waku", "rest_any_peer", ["false", "true", "\"on\""]),
    ("waku", "rest_admin", ["false", "true", "\"on\""]),
    (
        "waku",
        "listen",
        ["[]", "[\"/ip4/0.0.0.0/tcp/0\", \"/ip4/0.0.0.0/tcp/0/ws\"]", "[\"/ip4/127.0.0.1/udp/0\"]"],
    ),
    ("waku", "announce", ["[]", "[\"/dns4/node.example/tcp/443/wss\"]", "[\"node.example\"]"]),
    ("waku", "preset", ["\"\"", "\"status.prod\"", "\"status\""]),
    ("waku", "entry_nodes", PEERS),
    ("waku", "peers", PEERS),
    ("waku", "stores", PEERS),
    ("waku", "shards", ["[]", "[0, 1, 2, 3, 4, 5, 6, 7]", "[7]"]),
    ("waku", "forward", ["\"never\"", "\"always\"", "\"auto\""]),
    ("waku", "protected_shards", SIGNED),
    ("waku", "peer_exchange", ["false", "true", "\"on\""]),
    ("waku", "discv5", ["\"\"", "\"0.0.0.0:0\"", "\"127.0.0.1:0\""]),
    ("waku", "discover_private", ["false", "true", "\"on\""]),
    ("waku", "dns_servers", ["[]", "[\"9.9.9.9\", \"[::1]:5353\"]", "[\"dns.example\"]"]),
    ("waku", "retention", ["\"\"", "\"time:1;size:1GB;capacity:1\"", "\"age:1\""]),
    ("whisper", "serve", ["false", "true", "1"]),
    ("whisper", "rest", ["\"\"", "\"0.0.0.0:0\"", "\"127.0.0.1:0\""]),
    ("whisper", "rest_allow_origin", ORIGINS),
    ("whisper", "rest_hosts", ["[]", "[\"*\"]", "[\"mail.example\"]"]),
    ("whisper", "listen", ["\"\"", "\"0.0.0.0:0\"", "\"127.0.0.1:0\""]),
    ("whisper", "password", ["\"\"", "\"a very long password of many words, and ü\"", "\"x\""]),
    ("whisper", "request_key", ["\"\"", KEY, "\"abc\""]),
    ("whisper", "trusted", ["[]", ENODES, "[\"enode://ab@127.0.0.1:1\"]"]),
    ("whisper", "pow_min", ["0.0", "1000000.0", "0.000001"]),
    ("log", "level", ["\"off\"", "\"trace\"", "\"warn,hark_server=debug\""]),
    ("log", "addresses", ["\"whole\"", "\"hash\"", "\"some\""]),
    ("log", "format", ["\"text\"", "\"json\"", "\"xml\""]),
];

/// A setting as the program documents it, and its values for the trials.
struct Documented {
    section: String,
    key: String,
    /// The default, the least, the most and an odd value.
    values: [String; 4],
}

const NAMES: [&str; 4] = ["default", "least", "most", "odd"];

/// The `key = value` lines of a configuration, by section and key. Lines may be commented out.
fn lines(text: &str) -> Vec<(String, String, String)> {
    let (mut found, mut section) = (Vec::new(), String::new());
    for line in text.lines() {
        if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            name.clone_into(&mut section);
        }
        let line = line.strip_prefix('#').unwrap_or(line);
        let Some((key, value)) = line.split_once(" = ") else { continue };
        if key.chars().all(|c| c.is_ascii_lowercase() || c == '_') {
            found.push((section.clone(), key.to_owned(), value.to_owned()));
        }
    }
    found
}

/// All settings that `hark config` prints. `Err` lists settings without values in this file.
fn documented() -> Result<Vec<Documented>, String> {
    let defaults = lines(&program().arg("config").run_with(b"").text());
    let bounds = |text: &str| -> BTreeMap<(String, String), String> {
        lines(text).into_iter().map(|(section, key, value)| ((section, key), value)).collect()
    };
    let least = bounds(include_str!("../extremes/least.toml"));
    let most = bounds(include_str!("../extremes/most.toml"));
    let (mut all, mut missing) = (Vec::new(), Vec::new());
    for (section, key, default) in defaults {
        let name = (section.clone(), key.clone());
        let values = match (least.get(&name), most.get(&name)) {
            (Some(least), Some(most)) => {
                let odd = if least.starts_with('[') { "[7, 11]".into() } else { odd(least, most) };
                Some([default, least.clone(), most.clone(), odd])
            }
            _ => WORDS
                .iter()
                .find(|(of, known, _)| *of == section && *known == key)
                .map(|(.., of)| [default, of[0].into(), of[1].into(), of[2].into()]),
        };
        match values {
            Some(values) => all.push(Documented { section, key, values }),
            None => missing.push(format!("[{section}] {key}")),
        }
    }
    if !missing.is_empty() {
        return Err(format!(
            "write values for {} in tests/assembly/settings.rs",
            missing.join(", ")
        ));
    }
    if all.len() < 100 {
        return Err(format!(
            "only {} settings were found: how does `hark config` look now?",
            all.len()
        ));
    }
    Ok(all)
}

/// A number within bounds that is an unusual choice.
fn odd(least: &str, most: &str) -> String {
    let number = |text: &str| text.parse::<u64>().expect("a number");
    (number(least) + 6).min(number(most)).to_string()
}

/// The source of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    File,
    Environment,
    Reload,
}

/// One start, or one reload.
struct Trial<'a> {
    setting: &'a Documented,
    value: usize,
    origin: Origin,
}

/// The outcome of a trial.
pub(crate) type Trialled = (String, Result<(), String>);

impl Trial<'_> {
    fn name(&self) -> String {
        let Documented { section, key, values } = self.setting;
        let (which, value) = (NAMES[self.value], &values[self.value]);
        format!("[{section}] {key} at its {which} {value} from {:?}", self.origin).to_lowercase()
    }
}

/// A folder for one server at a time, and a database for settings that name a store.
struct Bench {
    root: Folder,
    database: String,
}

impl Bench {
    fn new(name: &str) -> Self {
        let root = Folder::new(&format!("assembly-settings-{name}"));
        let database = format!("settings_{}", number());
        Cluster::shared().sql("postgres", &format!("CREATE DATABASE {database}"));
        Self { root, database }
    }

    fn url(&self) -> String {
        Cluster::shared().url(&self.database)
    }

    fn value(&self, setting: &Documented, value: usize) -> String {
        let value = &setting.values[value];
        if value == "DATABASE" { format!("\"{}\"", self.url()) } else { value.clone() }
    }

    /// Returns a configuration with these networks' doors open and one setting with a value.
    fn config(set: Option<(&Documented, &str)>, networks: &[&str]) -> String {
        let mut sections: BTreeMap<&str, BTreeMap<&str, String>> = BTreeMap::new();
        for network in networks {
            let of = sections.entry(network).or_default();
            of.insert("serve", "true".into());
            of.insert("rest", "\"127.0.0.1:0\"".into());
            let listen =
                if *network == "waku" { "[\"/ip4/127.0.0.1/tcp/0\"]" } else { "\"127.0.0.1:0\"" };
            of.insert("listen", listen.into());
        }
        if let Some((setting, value)) = set {
            sections.entry(&setting.section).or_default().insert(&setting.key, value.into());
        }
        let mut text = String::new();
        for (section, settings) in sections {
            let _ = writeln!(text, "[{section}]");
            for (key, value) in settings {
                let _ = writeln!(text, "{key} = {value}");
            }
        }
        text
    }

    /// Starts a server with one setting, checks the server's health, and ends the server.
    fn start(&self, trial: &Trial<'_>) -> Result<(), String> {
        let setting = trial.setting;
        let value = self.value(setting, trial.value);
        let network = [setting.section.as_str()];
        let networks = if ["waku", "whisper"].contains(&network[0]) { &network[..] } else { &[] };
        let in_file = (trial.origin == Origin::File).then_some((setting, value.as_str()));
        let config = self.root.file("hark.toml", Self::config(in_file, networks));
        let mut command = program();
        command.current_dir(&self.root).arg("serve").arg("--config").arg(&config);
        // The flag `--listen` would override the trial's value of `server.listen`.
        if (setting.section.as_str(), setting.key.as_str()) != ("server", "listen")
            || trial.value == 0
        {
            command.args(["--listen", "127.0.0.1:0"]);
        }
        if setting.section == "postgres" {
            command.args(["--store", &self.url()]);
        }
        if trial.origin == Origin::Environment {
            let name = format!("HARK_{}_{}", setting.section, setting.key).to_uppercase();
            let text: toml::Table = format!("v = {value}").parse().expect("TOML");
            // A string in the environment has no quotes.
            command.env(name, text["v"].as_str().unwrap_or(&value));
        }
        let (ended, log) = match Server::try_start(&mut command, |_| true) {
            Ok(mut server) => {
                let ended = Self::asked(&mut server);
                let log = server.log();
                forget(server);
                (ended, log)
            }
            Err(mut process) => {
                let ended = Self::named(&mut process, &setting.key);
                let log = process.log();
                forget(process);
                (ended, log)
            }
        };
        match log.lines().position(|line| line.contains("panicked at")) {
            Some(at) => Err(log.lines().skip(at).take(2).collect::<Vec<_>>().join(" ")),
            None => ended,
        }
    }

    /// Fails unless a process that does not serve ends with an error that names the setting.
    fn named(process: &mut Process, key: &str) -> Result<(), String> {
        let status = process.wait_for_end(PATIENCE).ok_or("it neither serves nor ends")?;
        let log = process.log();
        let is_named = log.contains(key) && status.code() == Some(2);
        // Another program may use the default port.
        let is_taken = log.contains("Address already in use") || log.contains("in use");
        if is_named || is_taken { Ok(()) } else { Err(format!("{status}: {}", tail(&log))) }
    }

    /// Requests the server's health, and ends the server.
    fn asked(server: &mut Server) -> Result<(), String> {
        let addr = server.address.replace("0.0.0.0", "127.0.0.1");
        // Some values make the server refuse every client, but no value may make a client wait.
        let asked = HttpRequest::new("GET", "/healthz").try_send(&addr);
        if asked.is_err_and(|error| error.kind() == ErrorKind::WouldBlock) {
            return Err("a request is neither answered nor refused".into());
        }
        server.signal("TERM");
        match server.wait_for_end(PATIENCE) {
            Some(status) if status.success() => Ok(()),
            Some(status) => Err(format!("it ends with {status}: {}", tail(&server.log()))),
            None => Err("it does not end after SIGTERM".into()),
        }
    }
}

/// A server that reloads its configuration with each value.
struct Reloaded {
    bench: Bench,
    server: Option<Server>,
}

impl Reloaded {
    fn config(&self) -> PathBuf {
        self.bench.root.join("hark.toml")
    }

    fn write(&self, set: Option<(&Documented, &str)>) {
        let text = Bench::config(set, &["waku", "whisper"]);
        // Replaces the file as editors do, by renaming a new file.
        let other = self.bench.root.join("hark.toml.new");
        std::fs::write(&other, text).expect("is written");
        std::fs::rename(other, self.config()).expect("is renamed");
    }

    /// Returns the running server.
    fn serve(&mut self) -> &mut Server {
        if self.server.as_mut().is_none_or(|server| !server.is_running()) {
            self.write(None);
            let mut command = program();
            command.current_dir(&self.bench.root).args(["serve", "--listen", "127.0.0.1:0"]);
            self.server = Some(Server::start(command.arg("--config").arg(self.config())));
        }
        self.server.as_mut().expect("runs")
    }

    fn try_value(&mut self, trial: &Trial<'_>) -> Result<(), String> {
        self.serve();
        let value = self.bench.value(trial.setting, trial.value);
        self.write(Some((trial.setting, &value)));
        let server = self.serve();
        let from = server.log().len();
        server.signal("HUP");
        // The server logs whether the configuration was applied, was refused, or needs a restart.
        let said = until_ok(|| {
            let log = server.log();
            let new = log[from.min(log.len())..].to_owned();
            if new.contains("configuration") || trial.setting.section == "log" {
                return Ok(new);
            }
            assert!(server.is_running(), "the server ends: {}", tail(&log));
            Err(format!("the reload is not answered: {}", tail(&new)))
        });
        if let Some(at) = said.lines().position(|line| line.contains("panicked at")) {
            return Err(said.lines().skip(at).take(2).collect::<Vec<_>>().join(" "));
        }
        // Back to the default, so that the next trial changes only one value.
        self.write(None);
        self.serve().signal("HUP");
        Ok(())
    }

    /// Checks that the server answers after all reloads and ends normally.
    fn end(mut self) -> Result<(), String> {
        let addr = self.serve().address.clone();
        // The last reload may still be in progress.
        until_ok(|| {
            let reply = get(&addr, "/healthz");
            if reply.status == 200 { Ok(()) } else { Err(reply.text()) }
        });
        let mut server = self.server.take().expect("runs");
        server.signal("TERM");
        let status = server.wait_for_end(PATIENCE).ok_or("it does not end after SIGTERM")?;
        let log = server.log();
        forget(server);
        match (status.success(), log.contains("panicked at")) {
            (true, false) => Ok(()),
            _ => Err(format!("{status}: {}", tail(&log))),
        }
    }
}

/// Runs all trials. With `long`, each value is set in the file and in the environment, in separate
/// trials. Without `long`, each value is set in only one of these places.
pub(crate) fn try_all(long: bool, wanted: &str) -> Vec<Trialled> {
    let settings = match documented() {
        Ok(settings) => settings,
        Err(why) => return vec![("settings".into(), Err(why))],
    };
    let (mut starts, mut reloads) = (Vec::new(), Vec::new());
    for (at, setting) in settings.iter().enumerate() {
        for value in 0..4 {
            for (origin, turn) in [(Origin::File, 0), (Origin::Environment, 1)] {
                if long || (at + value) % 2 == turn {
                    starts.push(Trial { setting, value, origin });
                }
            }
            reloads.push(Trial { setting, value, origin: Origin::Reload });
        }
    }
    let is_wanted = |trial: &Trial<'_>| trial.name().contains(wanted);
    starts.retain(is_wanted);
    reloads.retain(is_wanted);
    let results = parking_lot::Mutex::new(Vec::new());
    let next = std::sync::atomic::AtomicUsize::new(0);
    // A starting server mostly waits, so more servers than worlds run at a time.
    let workers = crate::workers() * 2;
    std::thread::scope(|scope| {
        for worker in 0..workers {
            let (results, next, starts) = (&results, &next, &starts);
            scope.spawn(move || {
                let bench = Bench::new(&format!("start{worker}"));
                while let Some(trial) =
                    starts.get(next.fetch_add(1, std::sync::atomic::Ordering::Relaxed))
                {
                    let result = crate::caught(|| bench.start(trial)).and_then(|result| result);
                    results.lock().push((trial.name(), result));
                }
            });
        }
        // A reload mostly waits, so several servers reload at once.
        let share = reloads.len().div_ceil(crate::workers()).max(1);
        for (server, reloads) in reloads.chunks(share).enumerate() {
            let results = &results;
            scope.spawn(move || {
                let bench = Bench::new(&format!("reload{server}"));
                let mut reloaded = Reloaded { bench, server: None };
                for trial in reloads {
                    let result = crate::caught(|| reloaded.try_value(trial));
                    let result = result.and_then(|result| result);
                    if result.is_err()
                        && let Some(server) = reloaded.server.take()
                    {
                        forget(server);
                    }
                    results.lock().push((trial.name(), result));
                }
                let ended = crate::caught(|| reloaded.end()).and_then(|result| result);
                results.lock().push((format!("server {server} after its reloads"), ended));
            });
        }
    });
    results.into_inner()
}
