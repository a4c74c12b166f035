//! The binary from a user's view: flags, files, pipes, exit codes, and messages.

mod backup;
mod begun;
mod beside_server;
mod brought;
pub(crate) mod clients;
mod damage;
mod ends;
mod erased;
mod extremes;
pub(crate) mod full;
mod health;
mod import;
mod init;
mod json;
mod logged;
mod networks;
mod outputs;
mod owners;
mod rate_groups;
mod reload;
mod settings;
pub(crate) mod support;
mod terminal;
mod units;
mod unix_socket;
mod version;
mod watched;

use support::{Place, hark, hark_with};

#[test]
fn help_teaches_and_wrong_flags_are_refused() {
    let help = hark(&["--help"]);
    assert_eq!(help.code, 0);
    for word in ["serve", "import", "On a fresh machine", "Exit codes", "--data"] {
        assert!(help.stdout.contains(word), "{word}: {}", help.stdout);
    }
    for command in [
        "serve", "import", "export", "query", "count", "delete", "explain", "stats", "compact",
        "check", "rebuild", "salvage", "init", "config", "bench",
    ] {
        let help = hark(&[command, "--help"]);
        assert_eq!((help.code, help.stdout.contains("Usage: hark")), (0, true), "{command}");
    }
    for wrong in [
        &["sreve"][..],
        &["serve", "--listen", "7777"],
        &["query"],
        &["export", "--since", "yesterday"],
        &["stats", "--yaml"],
    ] {
        let run = hark(wrong);
        assert_eq!((run.code, run.stdout.as_str()), (2, ""), "{wrong:?}");
        assert!(!run.stderr.is_empty());
    }
}

#[test]
fn shells_and_man_know_every_command() {
    let top = hark(&["help"]).text();
    assert!(top.contains("On a fresh machine"), "{top}");
    assert_eq!(hark(&["help", "import"]).text(), hark(&["import", "--help"]).text());
    assert_eq!(hark(&["help", "nonsense"]).code, 2);
    for shell in ["bash", "zsh", "fish"] {
        let script = hark(&["completions", shell]).text();
        for word in ["backup", "incremental", "takeover"] {
            assert!(script.contains(word), "{shell}: {word}");
        }
    }
    // A flag is offered only where the flag has an effect.
    let fish = hark(&["completions", "fish"]).text();
    let offers = |command: &str| {
        let of = format!("__fish_hark_using_subcommand {command}\"");
        let mut lines = fish.lines().filter(|line| line.contains(&of));
        lines.any(|line| line.contains(" -l network "))
    };
    for (command, is_offered) in
        [("serve", false), ("config", false), ("sync", false), ("query", true), ("import", true)]
    {
        assert_eq!(offers(command), is_offered, "{command}");
    }
    let refused = hark(&["serve", "--network", "nostr"]);
    assert!(refused.code == 2 && refused.stderr.contains("serves every network"), "{refused:?}");
    let place = Place::new("man");
    let dir = place.path("man1");
    assert_eq!(hark(&["man", &dir]).code, 0);
    let page = std::fs::read_to_string(format!("{dir}/hark-import.1")).unwrap();
    assert!(page.contains(".TH") && page.contains("trusted"), "{page}");
    assert!(std::path::Path::new(&format!("{dir}/hark.1")).exists());
}

#[test]
fn help_fits_the_terminal_and_offers_network_where_it_means_something() {
    for command in ["import", "copy", "adopt", "backup", "cluster", "bench"] {
        let help = hark(&[command, "--help"]).text();
        // A paragraph that is wrapped twice has a line of a word or two in the middle.
        let lines: Vec<&str> = help.lines().collect();
        for three in lines.windows(3) {
            let is_text = |line: &str| !line.is_empty() && !line.starts_with(' ');
            let is_stub = three.iter().all(|line| is_text(line)) && three[1].len() < 40;
            assert!(!is_stub, "{command}: {three:?}");
        }
        assert!(lines.iter().all(|line| line.chars().count() <= 100), "{command}: {help}");
    }
    for (command, offered) in [
        ("serve", false),
        ("config", false),
        ("backup", false),
        ("reload", false),
        ("healthz", false),
        ("query", true),
    ] {
        let help = hark(&[command, "--help"]).text();
        assert_eq!(help.contains("--network"), offered, "{command}: {help}");
        if !offered {
            let run = hark(&["--network", "waku", command]);
            assert!(run.code == 2 && !run.stderr.is_empty(), "{command}: {run:?}");
        }
    }
}

#[test]
fn the_default_configuration_is_printed_checked_and_read() {
    let place = Place::new("config");
    let default = hark(&["config"]);
    assert!(default.stdout.contains("#listen = \"127.0.0.1:7777\""), "{}", default.stdout);
    let file = place.file("hark.toml", default.stdout.as_bytes());
    assert_eq!(hark(&["config", "--check", &file]).code, 0);
    let shown = hark(&["config", "--show"]).stdout;
    // Gift wraps, zap receipts, and the requests and responses of wallets.
    let addressed = "addressed_kinds = [\"1059\", \"9735\", \"21059\", \"23194\", \"23195\", \"23196\", \
                     \"23197\", \"24133\"]";
    assert!(shown.contains(addressed), "{shown}");
    let file = place.file("shown.toml", shown.as_bytes());
    assert_eq!(hark(&["config", "--show", "--config", &file]).stdout, shown);
}

#[test]
fn a_wrong_setting_is_named_with_its_line_and_what_was_meant() {
    let place = Place::new("config-wrong");
    let file = place
        .file("hark.toml", b"[server]\nlisten = \"127.0.0.1:1\"\n\n[limits]\nevent_byte_max = 1\n");
    for args in [&["config", "--check", &file][..], &["stats", "--config", &file]] {
        let run = hark(args);
        assert_eq!(run.code, 2);
        let said = "hark.toml:5: unknown setting `event_byte_max` in [limits]; did you mean `event_bytes_max`?";
        assert!(run.stderr.contains(said), "{}", run.stderr);
    }
    // All contradictions are reported at once, each with the line of one of the settings involved.
    let file = place.file("limits.toml", b"[limits]\nlimit_max = 10\nping_after_s = 9000\n");
    let run = hark(&["config", "--check", &file]);
    assert_eq!(run.code, 2);
    for said in [
        "limits.toml:2: [limits] `limit_default` (500) is above `limit_max` (10)",
        "limits.toml:3: [limits] `ping_after_s` (9000) is above `idle_timeout_s` (",
    ] {
        assert!(run.stderr.contains(said), "{}", run.stderr);
    }
    let run = hark(&["config", "--check", "no-such.toml"]);
    assert!(
        run.code == 2 && run.stderr.contains("no-such.toml could not be read"),
        "{}",
        run.stderr
    );
}

#[test]
fn the_environment_wins_over_the_file() {
    let place = Place::new("config-env");
    let file = place.file("hark.toml", b"[info]\nname = \"from the file\"\ncontact = \"kept\"\n");
    let show = ["config", "--show", "--config", &file];
    let run = hark_with(
        &show,
        &[("HARK_INFO_NAME", "from outside"), ("HARK_LIMITS_FILTERS_MAX", "7")],
        b"",
    );
    for line in ["name = \"from outside\"", "contact = \"kept\"", "filters_max = 7"] {
        assert!(run.stdout.contains(line), "{line}: {}{}", run.stdout, run.stderr);
    }
    let run = hark_with(&show, &[("HARK_LIMITS_FILTERS_MAX", "many")], b"");
    assert_eq!(run.code, 2);
    assert!(
        run.stderr.contains("environment variable HARK_LIMITS_FILTERS_MAX: `filters_max` must be")
    );
    let run = hark_with(&show, &[("HARK_INFO_NAEM", "x")], b"");
    assert!(run.stderr.contains("did you mean `name`?"), "{}", run.stderr);
}

#[test]
fn what_cannot_be_done_is_said_with_advice() {
    let place = Place::new("advice");
    for command in [
        &["stats"][..],
        &["check"],
        &["compact"],
        &["rebuild"],
        &["export"],
        &["query", "{}"],
        &["count", "{}"],
        &["explain", "{}"],
        &["delete", "{}"],
        &["delete", "{}", "--yes"],
    ] {
        let run = place.hark(command);
        assert_eq!(run.code, 1, "{command:?}: {}", run.stderr);
        assert!(run.stderr.contains("there is no archive in"), "{command:?}: {}", run.stderr);
    }
    assert!(!place.data().exists(), "a command that reads has made a directory");
    let run = place.hark(&["query", "{kinds:[1]}"]);
    assert_eq!(run.code, 2);
    assert!(run.stderr.contains("{kinds:[1]} is no filter"), "{}", run.stderr);
    for nobody in [
        "postgres://hark:secret@127.0.0.1:1/hark",
        "postgres://hark@127.0.0.1:1/hark?password=secret",
        "host=127.0.0.1 port=1 user=hark password='a secret'",
        "postgres://hark:a@secret@127.0.0.1:1/hark",
    ] {
        let run = place.hark(&["count", "{}", "--store", nobody]);
        let is_said = run.stderr.contains("could not be opened; check the address");
        assert!(run.code == 1 && is_said && !run.stderr.contains("secret"), "{}", run.stderr);
    }
    let run = place.hark(&["serve", "--store", "sqlite"]);
    assert!(run.code == 2 && run.stderr.contains("no store `sqlite`"), "{}", run.stderr);
    let run = hark(&["serve", "--data", "/dev/null/hark", "--listen", "127.0.0.1:0"]);
    assert!(
        run.code == 1 && run.stderr.contains("could not be made; name a writable one"),
        "{}",
        run.stderr
    );
    let run = place.hark(&["import", "no-such-file.jsonl"]);
    assert!(
        run.code == 1 && run.stderr.contains("no-such-file.jsonl could not be opened"),
        "{}",
        run.stderr
    );
}
