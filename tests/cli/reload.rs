//! A running server reloads its settings when a file changes and on SIGHUP, and never applies
//! invalid settings.

use std::io::Write as _;
use std::path::Path;

use hark_testkit::clock::now_s;
use hark_testkit::http::{self, HttpRequest, get};
use hark_testkit::nostr::{event_line, keys};
use hark_testkit::server::Server;
use hark_testkit::wait::until;
use hark_testkit::websocket::Socket;

use super::support::Place;

/// The relay's information document.
fn document(server: &Server) -> serde_json::Value {
    let accept = HttpRequest::new("GET", "/").header("Accept", "application/nostr+json");
    accept.send(&server.address).json()
}

fn limitation(server: &Server) -> serde_json::Value {
    document(server)["limitation"].take()
}

/// Waits until a field has a value.
fn wait_for(server: &Server, field: &str, value: u64) {
    until(field, || limitation(server)[field] == value);
}

#[test]
fn a_running_server_takes_over_what_changes_in_its_files() {
    let place = Place::new("reload");
    let words = place.file("words.txt", b"# none yet\n");
    let config = |limit: u32, rest: &str| {
        let text = format!(
            "[limits]\nlimit_max = {limit}\nlimit_default = 5\n\n\
             [policy]\ndeny_words = [\"@words.txt\"]\n{rest}"
        );
        place.file("hark.toml", text.as_bytes())
    };
    let file = config(50, "");
    let mut server = place.serve_with(&["--config", &file]);
    assert_eq!(limitation(&server)["max_limit"], 50);

    config(60, "");
    wait_for(&server, "max_limit", 60);

    // Invalid settings change nothing, and are logged.
    config(3, "");
    std::fs::write(Path::new(&words), "casino\n").unwrap();
    server.signal("HUP");
    server.wait_for_log("hark.toml:3: [limits] `limit_default` (5) is above `limit_max` (3)");
    assert_eq!(limitation(&server)["max_limit"], 60);

    // Settings that need a restart are logged, too.
    config(70, "pow_bits_min = 12\n\n[server]\nread_threads = 7\n");
    wait_for(&server, "max_limit", 70);
    wait_for(&server, "min_pow_difficulty", 12);
    server.wait_for_log("server.read_threads = 7 takes effect after a restart");

    // A list in a separate file.
    config(70, "pow_bits_min = 0\n");
    wait_for(&server, "min_pow_difficulty", 0);
    std::fs::write(Path::new(&words), "casino\nno: such, *thing*\n").unwrap();
    server.wait_for_log("the configuration was read again");
    std::fs::remove_file(&words).unwrap();
    server.wait_for_log("words.txt could not be read");
    let (code, _) = server.terminate();
    assert_eq!(code, 0);
}

/// The value of a metric.
fn metric(server: &Server, name: &str) -> u64 {
    let page = get(&server.address, "/metrics").ok();
    http::metric(&page, name).unwrap_or_else(|| panic!("no {name}")) as u64
}

#[test]
fn a_refused_configuration_is_read_again_when_a_file_that_it_names_is_mended() {
    let place = Place::new("reload-mended");
    let file = place.file("hark.toml", b"");
    let mut server = place.serve_with(&["--config", &file]);
    let started = metric(&server, "hark_config_last_reload_success_timestamp_seconds");
    assert!(metric(&server, "hark_config_last_reload_successful") == 1 && started > 1_700_000_000);
    // The list does not exist yet.
    place.file("hark.toml", b"[policy]\nallow_keys = [\"@members.txt\"]\n");
    server.wait_for_log("members.txt could not be read");
    assert_eq!(metric(&server, "hark_config_last_reload_successful"), 0);
    let run = place.hark(&["reload"]);
    assert!(run.code == 1 && run.stderr.contains("members.txt could not be read"), "{run:?}");
    server.wait_for_log("members.txt could not be read");
    let stats = place.hark(&["stats", "--json"]).json();
    let config = &stats["server"]["config"];
    assert!(config["refused"].as_str().unwrap().contains("members.txt"), "{config}");
    assert_eq!(config["in_force_since"].as_u64().unwrap(), started);
    assert!(place.hark(&["stats"]).text().contains("a newer one refused"));
    // The list is created with a mistake and then corrected, while the configuration itself stays
    // unchanged.
    place.file("members.txt", b"nobody\n");
    server.wait_for_log("members.txt:1: \"nobody\" is no public key");
    let members = format!("{}  # alice\n", "ab".repeat(32));
    place.file("members.txt", members.as_bytes());
    server.wait_for_log("the configuration was read again, and is in force");
    assert_eq!(metric(&server, "hark_config_last_reload_successful"), 1);
    assert_eq!(limitation(&server)["restricted_writes"], true);
    let run = place.hark(&["reload"]);
    assert!(run.code == 0 && run.stdout.contains("nothing has changed"), "{run:?}");
    // The server also reloads a file after a version that cannot be parsed.
    place.file("hark.toml", b"[policy\n");
    server.wait_for_log("the new configuration is refused");
    place.file("hark.toml", b"[limits]\nlimit_default = 7\n");
    server.wait_for_log("now limits.limit_default = 7");
    assert_eq!(limitation(&server)["restricted_writes"], false);
    let (code, _) = server.terminate();
    assert_eq!(code, 0);
    let run = place.hark(&["reload"]);
    assert!(run.code == 1 && run.stderr.contains("no server answers"), "{run:?}");
}

#[test]
fn info_privacy_retention_and_log_change_without_a_restart() {
    let place = Place::new("reload-live");
    let (old, new) =
        (event_line(1, 1_600_000_000, 7, &[], "old"), event_line(1, now_s(), 1, &[], "new"));
    place.hark_fed(&["import", "--trusted"], (old + &new).as_bytes()).text();
    let file = place.file("hark.toml", b"[retention]\nevery_s = 3600\n");
    let mut server = place.serve_with(&["--config", &file]);
    place.file(
        "hark.toml",
        b"[info]\nname = \"Owl\"\npubkey = \"npub10elfcs4fr0l0r8af98jlmgdh9c8tcxjvz9qkw038js35mp4dma8qzvjptg\"\n\
          [privacy]\nkinds = [4]\n\
          [retention]\nevery_s = 3600\nrules = [{ kinds = [7], older_than = \"90d\" }]\n\
          [log]\nlevel = \"debug\"\nformat = \"json\"\nslow_question_ms = 5\n",
    );
    let run = place.hark(&["reload"]);
    assert_eq!(run.code, 0, "{run:?}");
    for said in ["now info.name = \"Owl\"", "now privacy.kinds = [4]", "now log.format = \"json\""]
    {
        assert!(run.stdout.contains(said), "{said}: {run:?}");
    }
    assert!(!run.stdout.contains("restart"), "{run:?}");
    // The log is JSON from here on.
    server.wait_for_log("\"message\":\"records let go\"");
    let document = document(&server);
    assert_eq!(document["name"], "Owl");
    let key = "7e7e9c42a91bfef19fa929e5fda1b72e0ebc1a4c1141673e2794234d86addf4e";
    assert_eq!(document["pubkey"], key);
    let nips = document["supported_nips"].as_array().unwrap();
    assert!(nips.contains(&4.into()) && !nips.contains(&59.into()), "{nips:?}");
    assert!(get(&server.address, "/").ok().contains("Events of kind 7"), "the page says what goes");
    assert_eq!(place.hark(&["count", "{}"]).text().trim(), "1");
    // From here on, nothing is logged.
    place.file("hark.toml", b"[log]\nlevel = \"off\"\n");
    place.hark(&["reload"]).text();
    let (code, log) = server.terminate();
    assert!(code == 0 && !log.contains("asked to end"), "{log}");
}

#[test]
fn the_retention_of_each_network_changes_without_a_restart() {
    let place = Place::new("reload-networks");
    let message = r#"{"message":{"payload":"AAAA","contentTopic":"/a/1/b/proto","timestamp":1600000000000000000},"pubsubTopic":"/waku/2/rs/1/0"}"#;
    let envelope = r#"{"expiry":1554076850,"ttl":50,"topic":"0x5c6c9b56","data":"0x01","nonce":1}"#;
    for (network, line) in [("waku", message), ("whisper", envelope)] {
        place.hark_fed(&["import", "--network", network], line.as_bytes()).text();
    }
    let config = |retention: &str, days: u32| {
        let text = format!(
            "[retention]\nevery_s = 3600\nclock_ahead_max_s = 0\ndelete_brought = true\n\
             [waku]\nserve = true\nrest = \"127.0.0.1:0\"\nlisten = []\nretention = \"{retention}\"\n\
             [whisper]\nserve = true\nrest = \"127.0.0.1:0\"\nlisten = \"\"\nretention_days = {days}\n"
        );
        place.file("hark.toml", text.as_bytes())
    };
    let server = place.serve_with(&["--config", &config("", 0)]);
    let count = |network: &str| place.hark(&["count", "--network", network, "{}"]).text();
    assert_eq!(["waku", "whisper"].map(count), ["1\n", "1\n"]);
    config("time:60", 1);
    let run = place.hark(&["reload"]);
    for said in ["now waku.retention = \"time:60\"", "now whisper.retention_days = 1"] {
        assert!(run.stdout.contains(said), "{said}: {run:?}");
    }
    for network in ["waku", "whisper"] {
        until(network, || count(network) == "0\n");
    }
    assert_eq!(server.terminate().0, 0);
}

#[test]
fn lists_are_checked_entry_by_entry_with_their_place() {
    let place = Place::new("lists");
    place.file("keys.txt", format!("# friends\n{}\n\nnobody\n", "ab".repeat(32)).as_bytes());
    let text = "[policy]\nallow_keys = [\"@keys.txt\"]\ndeny_kinds = [7, \"9-3\"]\n\
                deny_addresses = [\"192.0.2.0/24\", \"here\"]\nallow_kinds = [\"@none.txt\"]\ndeny_words = [\"\"]\n\
                [rates]\nspared_keys = [\"*\"]\n";
    let file = place.file("hark.toml", text.as_bytes());
    let run = super::support::hark(&["config", "--check", &file]);
    assert_eq!(run.code, 2);
    for said in [
        "keys.txt:4: \"nobody\" is no public key",
        "[policy] `deny_kinds`: \"9-3\" is no kind like 1",
        "[policy] `deny_addresses`: \"here\" is no address and no network",
        "[policy] `allow_kinds`: ",
        "[policy] `deny_words`: \"\" is no word",
        "none.txt could not be read",
        "hark.toml:8: [rates] `spared_keys`: \"*\" stands alone",
    ] {
        assert!(run.stderr.contains(said), "{said}: {}", run.stderr);
    }
}

/// A client that publishes events and reads the verdict of each OK message.
struct Publisher(Socket);

impl Publisher {
    fn new(server: &Server) -> Self {
        Self(Socket::connect(&server.address))
    }

    /// Publishes a note, and returns the verdict and the reason of the OK message.
    fn publish(&mut self, who: u8, content: &str) -> (bool, String) {
        let note = event_line(who, now_s(), 1, &[], content);
        self.0.send_text(format!("[\"EVENT\",{}]", note.trim_end()));
        let ok = self.0.json();
        assert_eq!(ok[0], "OK", "{ok}");
        (ok[2].as_bool().unwrap(), ok[3].as_str().unwrap().to_owned())
    }
}

fn hex_key(who: u8) -> String {
    let key = hark_codec::hex::encode_32(keys(who).public());
    String::from_utf8_lossy(&key).into_owned()
}

/// An empty list in a file with comments only, in the setting, in a variable, and in a file that is
/// emptied later.
#[test]
fn a_list_that_is_empty_admits_nobody() {
    let place = Place::new("list-empty");
    let comments = place.file("members.txt", b"# nobody yet\n");
    let file = |list: &str| {
        place.file("hark.toml", format!("[policy]\nallow_keys = [{list}]\n").as_bytes())
    };
    for list in ["\"@members.txt\"", ""] {
        let mut server = place.serve_with(&["--config", &file(list)]);
        server.wait_for_log("[policy] allow_keys has no entry, so nothing is accepted");
        let (accepted, reason) = Publisher::new(&server).publish(1, list);
        assert!(!accepted && reason.starts_with("blocked: "), "{reason}");
        assert_eq!(limitation(&server)["restricted_writes"], true);
        assert!(get(&server.address, "/healthz").text().contains("allow_keys has no entry"));
        assert_eq!(server.terminate().0, 0);
    }
    for list in ["\"*\"", &format!("\"{}\"", hex_key(1))] {
        let server = place.serve_with(&["--config", &file(list)]);
        assert_eq!(Publisher::new(&server).publish(1, list), (true, String::new()));
        assert_eq!(server.terminate().0, 0);
    }
    // A variable with an empty value.
    let checked = |name: &str, value: &str| {
        super::support::hark_with(&["config", "--show"], &[(name, value)], b"")
    };
    for (name, shown) in [
        ("HARK_POLICY_ALLOW_KEYS", "allow_keys = []"),
        ("HARK_POLICY_ALLOW_KINDS", "allow_kinds = []"),
        ("HARK_POLICY_ALLOW_WORDS", "allow_words = []"),
        ("HARK_POLICY_ALLOW_ADDRESSES", "allow_addresses = []"),
    ] {
        let run = checked(name, "");
        assert!(run.code == 0 && run.stdout.contains(shown), "{name}: {run:?}");
    }
    // An empty variable must not make private kinds public, nor protected shards unprotected, by
    // mistake.
    for name in ["HARK_PRIVACY_KINDS", "HARK_WAKU_PROTECTED_SHARDS"] {
        let run = checked(name, "");
        assert!(run.code == 2 && run.stderr.contains("write [] for none"), "{name}: {run:?}");
        assert_eq!(checked(name, "[]").code, 0);
    }
    // `*` in a file, or beside other entries, is a mistake.
    std::fs::write(&comments, "*\n").unwrap();
    for list in ["\"@members.txt\"", &format!("\"*\", \"{}\"", hex_key(1))] {
        let run = super::support::hark(&["config", "--check", &file(list)]);
        assert_eq!(run.code, 2, "{list}: {run:?}");
    }
}

/// If the last entry of a list is removed in the configuration file itself, a reload revokes this
/// entry. A file without entries may have been emptied by a full disk, so the message explains how
/// to revoke the last entry.
#[test]
fn the_last_entry_of_a_list_is_revoked_without_a_restart() {
    let place = Place::new("list-last");
    let members = place.file("members.txt", format!("{}\n", hex_key(1)).as_bytes());
    let write = |keys: &str, spared: &str| {
        let text = format!(
            "[policy]\nallow_keys = [{keys}]\n[rates]\nevents_per_address = [1, 1]\n\
             spared_addresses = [{spared}]\n"
        );
        place.file("hark.toml", text.as_bytes())
    };
    let (member, spared) = (format!("\"{}\"", hex_key(1)), "\"127.0.0.1\"");
    let server = place.serve_with(&["--config", &write(&member, spared)]);
    let mut publisher = Publisher::new(&server);
    let mut published = 0;
    let mut publish = || {
        published += 1;
        publisher.publish(1, &published.to_string())
    };
    assert!((0..3).all(|_| publish().0), "a spared client has no rate");
    write("", spared);
    let told = place.hark(&["reload"]).text();
    assert!(told.contains("now policy.allow_keys = []"), "{told}");
    assert!(publish().1.starts_with("blocked: "));
    write("\"@members.txt\"", spared);
    place.hark(&["reload"]).text();
    assert!(publish().0);
    std::fs::write(&members, "# nobody\n").unwrap();
    let run = place.hark(&["reload"]);
    let said = "members.txt had entries and has none now; if that is meant, write [] for the list";
    assert!(run.code == 1 && run.stderr.contains(said), "{run:?}");
    assert!(publish().0);
    write("", spared);
    place.hark(&["reload"]).text();
    assert!(publish().1.starts_with("blocked: "));
    write(&member, "");
    let told = place.hark(&["reload"]).text();
    assert!(told.contains("now rates.spared_addresses = []"), "{told}");
    let refused = (0..3).filter(|_| publish().1.starts_with("rate-limited: ")).count();
    assert!(refused >= 2, "{refused}");
    assert_eq!(server.terminate().0, 0);
}

/// The file has one member more at the end than at the start. In between, the file is truncated and
/// written piece by piece, a thousand times, and the server gets reload requests at the same time.
#[test]
fn a_list_that_is_rewritten_in_place_lets_no_stranger_in_and_shuts_no_member_out() {
    const REWRITES: usize = 1_000;
    let place = Place::new("list-rewritten");
    let entries = |count: u8| {
        let lines = (1..=count).map(|who| format!("{}  # member {who}\n", hex_key(who)));
        lines.collect::<String>()
    };
    let members = place.file("members.txt", entries(8).as_bytes());
    let file = place.file(
        "hark.toml",
        b"[policy]\nallow_keys = [\"@members.txt\"]\n[rates]\nevents_per_address = [0, 0]\n\
          events_per_key = [0, 0]\n",
    );
    let mut server = place.serve_with(&["--config", &file]);
    let (mut member, mut stranger) = (Publisher::new(&server), Publisher::new(&server));
    let whole = entries(8);
    for n in 0..REWRITES {
        // The file is first truncated, then written up to a cut, which may be in the middle of a
        // line, then whole.
        let mut file = std::fs::File::create(&members).unwrap();
        let cut = n * 37 % whole.len();
        for piece in [&whole[..cut], &whole[cut..]] {
            if n % 10 == 0 {
                server.signal("HUP");
            }
            let (accepted, reason) = member.publish(8, &n.to_string());
            assert!(accepted, "{n}: a member is out: {reason}");
            let (accepted, _) = stranger.publish(9, &n.to_string());
            assert!(!accepted, "{n}: a stranger is in");
            file.write_all(piece.as_bytes()).unwrap();
            file.flush().unwrap();
        }
    }
    // Emptied for good, as by a full disk.
    std::fs::write(&members, "").unwrap();
    server.wait_for_log("members.txt had entries and has none now");
    assert!(member.publish(8, "still in").0 && !stranger.publish(9, "still out").0);
    assert!(
        get(&server.address, "/healthz").ok().starts_with("ok\nthe new configuration is refused")
    );
    std::fs::write(&members, entries(9)).unwrap();
    server.wait_for_log("the configuration was read again, and is in force");
    assert!(stranger.publish(9, "a member now").0);
    assert_eq!(server.terminate().0, 0);
}
