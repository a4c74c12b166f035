//! Tests of the whole configuration.

use hark_server::nostr::{DomainList, NameRules, RuleMode};
use hark_testkit::folder::Folder;

use super::{Config, checks, typed};
use crate::stores::{StoreAddress, address_forms};

fn faults(text: &str) -> String {
    let (typed, mut faults) = typed::from_toml("hark.toml".as_ref(), text);
    faults.extend(typed.into_iter().filter_map(|typed| {
        let fault = (typed.setting.set)(&mut Config::default(), &typed.value).err()?;
        Some(format!("{}: `{}` {fault}", typed.origin, typed.setting.key))
    }));
    faults.join("\n")
}

#[test]
fn a_password_is_shown_nowhere() {
    for address in [
        "postgres://me:s3cret@host:5432/hark",
        "postgres://me@host/hark?password=s3cret",
        "host=host user=me password='a s3cret'",
        "mysql://me:s3cret@host/hark",
    ] {
        let text = format!(
            "[archive]\nstore = \"{address}\"\n[postgres]\nread_url = \"{address}\"\n\
             [mirror]\nstore = \"{address}\"\n[whisper]\npassword = \"s3cret\"\n"
        );
        let mut config = Config::default();
        for typed in typed::from_toml("hark.toml".as_ref(), &text).0 {
            (typed.setting.set)(&mut config, &typed.value).unwrap();
        }
        assert_eq!(config.store.secret(), address);
        let changes = config.changes(&Config::default());
        assert_eq!(changes.len(), 4);
        let elsewhere = faults(&format!("[server]\nlisten = \"{address}\""));
        let toml = config.to_toml(true) + &config.to_toml(false);
        for printed in [format!("{changes:?}"), toml, elsewhere, format!("{config:?}")] {
            assert!(printed.contains("***") && !printed.contains("s3cret"), "{printed}");
        }
        // A change of only the password is still detected.
        let mut other = config.clone();
        other.store = StoreAddress::new(address.replace("s3cret", "other"));
        assert_eq!(other.changes(&config).len(), 1);
    }
}

#[test]
fn lists_in_the_environment_are_written_as_in_a_file_or_with_commas() {
    let kinds = "HARK_PRIVACY_KINDS";
    let words = "HARK_POLICY_DENY_WORDS";
    let networks = "HARK_SERVER_METRICS_ALLOW";
    let listen = "HARK_SERVER_LISTEN";
    for (name, text, shown) in [
        (kinds, "[4, 1059]", "kinds = [4, 1059]"),
        (kinds, "4,1059", "kinds = [4, 1059]"),
        (kinds, " 4 , 1059, ", "kinds = [4, 1059]"),
        (kinds, "[\n  4,\n  1059,\n]", "kinds = [4, 1059]"),
        (kinds, "[]", "kinds = []"),
        (kinds, "", "kinds = []"),
        ("HARK_WAKU_SHARDS", "[0, 1]", "shards = [0, 1]"),
        (networks, "[\"127.0.0.1\", '10.0.0.0/8']", "[\"127.0.0.1/32\", \"10.0.0.0/8\"]"),
        (networks, "127.0.0.1, 10.0.0.0/8", "[\"127.0.0.1/32\", \"10.0.0.0/8\"]"),
        (networks, "[]", "metrics_allow = []"),
        (words, "[\"one, two\", \"@file\"]", "[\"one, two\", \"@file\"]"),
        (words, "\"one, two\", \"@file\"", "[\"one, two\", \"@file\"]"),
        (words, "don't,@file", "[\"don't\", \"@file\"]"),
        ("HARK_POLICY_DENY_KINDS", "[4, \"20000-29999\"]", "[\"4\", \"20000-29999\"]"),
        ("HARK_INFO_OTHER_URLS", "[\"ws://a\", \"ws://b\"]", "[\"ws://a\", \"ws://b\"]"),
        ("HARK_RATES_EVENTS_PER_KEY", "[6, 7]", "events_per_key = [6, 7]"),
        ("HARK_RATES_EVENTS_PER_KEY", "6,7", "events_per_key = [6, 7]"),
        ("HARK_RETENTION_SPARED_KINDS", "[5, 62]", "spared_kinds = [5, 62]"),
        ("HARK_RETENTION_RULES", "[]", "rules = []"),
        (listen, "[::1]:7777", "listen = \"[::1]:7777\""),
        (listen, "unix:/run/a.sock", "listen = \"unix:/run/a.sock\""),
        (listen, "[::1]:7777, localhost:1", "listen = [\"[::1]:7777\", \"127.0.0.1:1\"]"),
        (listen, "[\"[::1]:7777\", \"hark:1\"]", "listen = [\"[::1]:7777\", \"hark:1\"]"),
    ] {
        let typed = typed::from_environment([(name.into(), text.into())].into_iter()).0;
        let mut config = Config::default();
        (typed[0].setting.set)(&mut config, &typed[0].value)
            .unwrap_or_else(|fault| panic!("{name}={text}: {fault}"));
        assert!(config.to_toml(true).contains(shown), "{name}={text}");
    }
    for (name, text) in [
        (kinds, "[4, 1059"),
        (kinds, "4;1059"),
        (kinds, "[4]\nother = 1"),
        (kinds, "[65536]"),
        ("HARK_RATES_EVENTS_PER_KEY", "[1]"),
        ("HARK_RETENTION_RULES", "1y"),
        (listen, "127.0.0.1:7777, 7778"),
        (listen, "[\"127.0.0.1\"]"),
    ] {
        let typed = typed::from_environment([(name.into(), text.into())].into_iter()).0;
        let set = (typed[0].setting.set)(&mut Config::default(), &typed[0].value);
        assert!(set.unwrap_err().starts_with("must be "), "{name}={text}");
    }
}

#[test]
fn defaults_and_values_in_force_can_be_read_back() {
    let config = Config::default();
    assert_eq!(checks::faults(&config, &address_forms()), [""; 0]);
    let uncommented: String = config
        .to_toml(false)
        .lines()
        .map(|line| match line.strip_prefix('#') {
            Some(setting) if !setting.starts_with(' ') => format!("{setting}\n"),
            _ => format!("{line}\n"),
        })
        .collect();
    for text in [config.to_toml(true), config.to_toml(false), uncommented] {
        assert_eq!(faults(&text), "", "{text}");
    }
}

#[test]
fn what_is_wrong_is_said_with_its_line_and_what_was_meant() {
    for (text, said) in [
        (
            "[server]\nlisten = 7777",
            "hark.toml:2: `listen` must be an address and port like 127.0.0.1:7777, [::]:7777 or relay.example:7777, \
             or a socket like unix:/run/hark/relay.sock, but is 7777",
        ),
        (
            "[server]\nlistn = \"\"",
            "hark.toml:2: unknown setting `listn` in [server]; did you mean `listen`?",
        ),
        ("\n[limit]\n", "hark.toml:2: unknown section [limit]; did you mean `limits`?"),
        (
            "[server]\nevent_bytes_max = 1",
            "hark.toml:2: unknown setting `event_bytes_max` in [server]; [limits] has one",
        ),
        ("name = \"x\"", "hark.toml:1: `name` belongs in a section: [info] has one"),
        (
            "listen = 1",
            "hark.toml:1: `listen` belongs in a section: [server], [waku] and [whisper] have one",
        ),
        ("nmae = 1", "hark.toml:1: unknown section [nmae]"),
        ("[name]\nof = 1", "hark.toml:1: unknown section [name]; [info] has a setting `name`"),
        (
            "[limits]\nlisten = 1",
            "unknown setting `listen` in [limits]; [server], [waku] and [whisper] have one",
        ),
        ("server = 1", "hark.toml:1: `server` is a section"),
        (
            "[limits]\nlimit_max = -1",
            "hark.toml:2: `limit_max` must be a whole number, 0 or above, but is -1",
        ),
        ("[limits]\nlimit_max = ", "hark.toml:2: "),
        ("[retention]\nrules = [{ kinds = [1] }]", "without `older_than`"),
        (
            "[retention]\nrules = [{ kind = [1] }]",
            "`kind` of a rule, line 2: unknown; did you mean `kinds`?",
        ),
    ] {
        let faults = faults(text);
        assert!(faults.contains(said), "{text:?} says {faults:?}");
    }
    let listening = |addr: &str| {
        let mut config = Config::default();
        config.waku.serve = true;
        config.waku.listen = vec![addr.into()];
        checks::faults(&config, &address_forms()).concat()
    };
    for (addr, is_secure) in [
        ("/ip4/127.0.0.1/tcp/1/ws", false),
        ("/ip4/127.0.0.1/tcp/1/wss", true),
        ("/ip4/127.0.0.1/tcp/1/tls/ws", true),
    ] {
        let faults = listening(addr);
        let is_refused = faults.contains("`listen`") && faults.contains("needs a certificate");
        assert_eq!(is_refused, is_secure && cfg!(feature = "libp2p"), "{addr}: {faults}");
    }
    let shards = |count| {
        let mut config = Config::default();
        config.waku.shards = (0..count).collect();
        checks::faults(&config, &address_forms()).concat()
    };
    assert_eq!(shards(128), "");
    assert!(shards(129).contains("`shards` has 129 shards, at most 128 are served"));
}

#[test]
fn faults_of_every_kind_are_told_at_once_each_with_its_line() {
    let folder = hark_testkit::disk::scratch("config-faults");
    std::fs::create_dir(&folder).unwrap();
    let file = folder.join("hark.toml");
    let text = "[server]\nlistn = \"x\"\n[limits]\nlimit_max = \"many\"\nfilters_max = 0\n\
                [info]\nother_urls = [\"wss://a.example\"]\n\
                [policy]\nallow_keys = [\"@missing.txt\"]\n";
    std::fs::write(&file, text).unwrap();
    let faults = Config::load(Some(&file), &address_forms()).unwrap_err();
    for (line, said) in [
        (2, "unknown setting `listn` in [server]"),
        (4, "`limit_max` must be a whole number"),
        (5, "[limits] `filters_max` must be from 1 to "),
        (7, "[info] `other_urls` is set without `url`"),
        (9, "[policy] `allow_keys`: "),
    ] {
        let begin = format!("{}:{line}: {said}", file.display());
        let is_told = faults.lines().iter().any(|fault| fault.starts_with(&begin));
        assert!(is_told, "{begin}: {}", faults.list());
    }
    assert_eq!(faults.lines().len(), 5, "{}", faults.list());
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn rules_are_read_from_either_form() {
    let text = "[[retention.rules]]\nkinds = [7]\nolder_than = \"90d\"\n";
    let typed = typed::from_toml("x".as_ref(), text).0;
    let mut config = Config::default();
    (typed[0].setting.set)(&mut config, &typed[0].value).unwrap();
    assert_eq!(config.retention.rules[0].older_than_s, 90 * 86_400);
    assert!(config.to_toml(true).contains("rules = [{ kinds = [7], older_than = \"90d\" }]"));
    let variable = ("HARK_RETENTION_RULES".into(), "[{ older_than = \"1y\" }]".into());
    let typed = typed::from_environment([variable].into_iter()).0;
    (typed[0].setting.set)(&mut config, &typed[0].value).unwrap();
    assert_eq!(config.retention.rules[0].older_than_s, 365 * 86_400);
}

#[test]
fn rules_about_names_have_the_lists_and_the_managers() {
    let folder = Folder::new("config-names");
    folder.file("domains.txt", "example.com # ours\n*.example.org\n");
    let load = |denied: &str| {
        let key = "7e".repeat(32);
        let text = format!(
            "[names]\nmode = \"require\"\ndomains_allowed = [\"@domains.txt\"]\nvalid_s = 100\n\
             domains_denied = [{denied}]\n[manage]\nkeys = [\"{key}\"]\n"
        );
        Config::load(Some(&folder.file("hark.toml", text)), &address_forms())
    };
    let config = load("\"Spam.example\"").unwrap();
    let (mut allowed, mut denied) = (DomainList::default(), DomainList::default());
    assert!(
        allowed.add("example.com") && allowed.add("*.example.org") && denied.add("spam.example")
    );
    let expected = NameRules {
        mode: RuleMode::Require,
        domains_allowed: Some(allowed),
        domains_denied: denied,
        valid_s: 100,
        managers: config.managers.clone(),
        ..NameRules::default()
    };
    assert_eq!(config.policy.names, expected);
    assert!(config.managers.admins.contains(&[0x7e; 32]) && config.advice().is_empty());
    let faults = load("\"https://spam.example\"").unwrap_err();
    let fault = "[names] `domains_denied`: \"https://spam.example\" is no domain like example.com";
    assert!(faults.list().contains(fault), "{}", faults.list());
}
