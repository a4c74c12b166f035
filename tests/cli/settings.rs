//! Values in the forms that operators type: sizes with units, keys in several forms, and refused
//! values.

use hark_testkit::nostr::event_line;

use super::support::{Place, command, hark, hark_with};

/// The key of NIP-19's example, in both forms.
const NPUB: &str = "npub10elfcs4fr0l0r8af98jlmgdh9c8tcxjvz9qkw038js35mp4dma8qzvjptg";
const HEX: &str = "7e7e9c42a91bfef19fa929e5fda1b72e0ebc1a4c1141673e2794234d86addf4e";

#[test]
fn sizes_and_keys_are_typed_in_words() {
    let place = Place::new("settings-words");
    let text = format!(
        "[archive]\nlog_bytes_max = \"128MiB\"\n[info]\npubkey = \"{NPUB}\"\n\
         [retention]\nrules = [{{ authors = [\"{NPUB}\"], older_than = \"1d\" }}]\n\
         [policy]\nallow_keys = [\"{NPUB}\", \"@more.txt\"]\n"
    );
    place.file("more.txt", format!("{NPUB}  # the same\n{HEX} #again\n").as_bytes());
    let file = place.file("hark.toml", text.as_bytes());
    let variables = [("HARK_CONFIG", file.as_str()), ("HARK_RETENTION_BYTES_MAX", "50GB")];
    let shown = hark_with(&["config", "--show"], &variables, b"").text();
    for line in [
        "log_bytes_max = 134217728".to_owned(),
        "bytes_max = 50000000000".to_owned(),
        format!("pubkey = \"{HEX}\""),
        format!("rules = [{{ authors = [\"{HEX}\"], older_than = \"1d\" }}]"),
    ] {
        assert!(shown.lines().any(|shown| shown == line), "{line}: {shown}");
    }
    let wrong = [("HARK_RETENTION_BYTES_MAX", "much")];
    let run = hark_with(&["config", "--show"], &wrong, b"");
    assert!(run.code == 2 && run.stderr.contains("a size may be \"50GB\" or \"64MiB\""), "{run:?}");
}

#[test]
fn filters_take_keys_as_people_have_them() {
    let place = Place::new("settings-filters");
    let note = event_line(1, 1_700_000_000, 1, &[&["p", HEX]], "to the key");
    place.hark_fed(&["import", "--trusted"], note.as_bytes()).text();
    let count = |filter: &str| place.hark(&["count", filter]).text().trim().to_owned();
    assert_eq!(count(&format!("{{\"#p\":[\"{NPUB}\"]}}")), "1");
    assert_eq!(count(&format!("{{\"authors\":[\"{NPUB}\"]}}")), "0");
    let run = place.hark(&["count", &format!("{{\"#p\":[\"{NPUB}x\"]}}")]);
    assert!(run.code == 2 && run.stderr.contains("a character is wrong"), "{run:?}");
}

#[test]
fn values_that_nobody_means_are_refused() {
    let place = Place::new("settings-refused");
    for (text, said) in [
        ("[archive]\nstore = \"mysql://x\"", "[archive] `store` must be `embedded` or postgres://"),
        ("[log]\nlevel = \"verbose\"", "\"verbose\" is no level"),
        ("[retention]\nrules = [{ older_than = \"0d\" }]", "must be above 0"),
        ("[policy]\ndeny_words = [\"\"]", "\"\" is no word"),
        ("[policy]\nallow_keys = [\"npub1x\"]", "is no public key; a character of it is wrong"),
        (
            "[waku]\nlisten = [\"/ip4/127.0.0.1/udp/0\"]",
            "[waku] `listen` has \"/ip4/127.0.0.1/udp/0\"",
        ),
        ("[info]\nicon = \"not a url\"", "`icon` must be a URL"),
        ("[info]\nurl = \"owl.example\"", "`url` must be a URL with wss:// or ws://"),
    ] {
        let file = place.file("hark.toml", text.as_bytes());
        for args in [&["config", "--check", &file][..], &["serve", "--config", &file]] {
            let run = hark(args);
            assert!(run.code == 2 && run.stderr.contains(said), "{args:?}: {said}: {run:?}");
        }
    }
    let output = command(&["--store", "mysql://x", "serve"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{output:?}");
}

#[test]
fn a_preset_sets_what_the_file_leaves_out_and_its_values_name_it() {
    let place = Place::new("settings-preset");
    let text = "[waku]\nshards = [0, 32]\npreset = \"status.prod\"\n";
    let file = place.file("hark.toml", text.as_bytes());
    let shown = hark(&["config", "--show", "--config", &file]).stdout;
    for line in [
        "preset = \"status.prod\"".to_owned(),
        "cluster = 16  # preset \"status.prod\"".into(),
        "shards_in_cluster = 1  # preset \"status.prod\"".into(),
        "message_bytes_max = 1048576  # preset \"status.prod\"".into(),
        format!("shards = [0, 32]  # {file}:2"),
    ] {
        assert!(shown.lines().any(|shown| shown == line), "{line}: {shown}");
    }
    assert!(shown.contains("boot-01.do-ams3.status.prod.status.im"), "{shown}");
    // The output is a configuration with the same values.
    let again = place.file("shown.toml", shown.as_bytes());
    let values = |text: &str| -> Vec<String> {
        text.lines().map(|line| line.split("  # ").next().unwrap_or_default().to_owned()).collect()
    };
    let second = hark(&["config", "--show", "--config", &again]).stdout;
    assert_eq!(values(&second), values(&shown));

    let checked = hark(&["config", "--check", &file]).stdout;
    for part in [
        "preset \"status.prod\" sets entry_nodes = [".to_owned(),
        "cluster = 16, shards_in_cluster = 1, message_bytes_max".into(),
        format!("[waku] `shards` = [0, 32] ({file}:2) overrides preset \"status.prod\""),
    ] {
        assert!(checked.contains(&part), "{part}: {checked}");
    }
    // The environment overrides the preset of the file, and an empty preset restores the defaults.
    let show = ["config", "--show", "--config", &file];
    let twn = hark_with(&show, &[("HARK_WAKU_PRESET", "logos.test")], b"").text();
    assert!(
        twn.contains("\ncluster = 2  #") && twn.contains("node-01.do-ams3.logos.test"),
        "{twn}"
    );
    let none = hark_with(&show, &[("HARK_WAKU_PRESET", "")], b"").text();
    assert!(none.contains("\ncluster = 1\n") && none.contains("\nentry_nodes = []\n"), "{none}");
    let wrong = hark_with(&show, &[("HARK_WAKU_PRESET", "status")], b"");
    let named = "must be one of \"status.prod\", \"logos.test\", \"logos.dev\", \"twn\"";
    assert!(wrong.code == 2 && wrong.stderr.contains(named), "{wrong:?}");
}
