//! A router between three servers, its file, and its metrics.

use std::collections::BTreeSet;

use hark_testkit::clock::now_s;
use hark_testkit::http::HttpRequest;
use hark_testkit::nostr::event_line;
use hark_testkit::server::free_port;
use hark_testkit::wait::until_ok;

use super::nodes::{Node, Running, id, notes, write};

fn publish(node: &Node, name: &str, count: u64) -> Vec<String> {
    let events = notes(name, count, now_s() - count);
    let path = node.path("new.jsonl");
    write(&path, &events.concat());
    let done = node.run(&["import", &path.to_string_lossy()]);
    assert_eq!(done.code, 0, "{done:?}");
    events
}

/// The value of a metric of a stream.
fn metric(port: u16, name: &str, stream: &str) -> Option<u64> {
    let address = format!("127.0.0.1:{port}");
    let page = HttpRequest::new("GET", "/metrics").try_send(&address).ok()?.text();
    let begin = format!("{name}{{stream=\"{stream}\"");
    let line = page.lines().find(|line| line.starts_with(&begin))?;
    line.rsplit(' ').next()?.parse().ok()
}

fn wait_for_metric(port: u16, name: &str, stream: &str, value: u64) {
    until_ok(|| {
        let found = metric(port, name, stream);
        let why = format!("{name} of {stream} is {found:?}, not {value}");
        if found == Some(value) { Ok(()) } else { Err(why) }
    });
}

/// The events of one relay reach the others, even though each server is killed once. A changed file
/// applies immediately, and an invalid file never applies.
#[test]
fn three_servers_have_the_same_events_in_the_end() {
    let mut middle = Node::served_again("router-middle", &notes("middle", 10, now_s() - 99));
    let mut left = Node::served_again("router-left", &notes("left", 20, now_s() - 99));
    let mut right = Node::served_again("router-right", &notes("right", 30, now_s() - 99));
    let (port, file) = (free_port(), middle.path("router.toml"));
    let stream = |name: &str, url: &str| {
        format!(
            "[streams.{name}]\ndir = \"both\"\nurls = [\"{url}\"]\nfilter = {{ kinds = [1, 7, 30] }}\n"
        )
    };
    let metrics = format!("metrics = \"127.0.0.1:{port}\"\n");
    let one = metrics.clone() + &stream("left", &left.url());
    let both = one.clone() + &stream("right", &right.url());
    write(&file, &one);
    let path = file.to_string_lossy().into_owned();
    let check = middle.run(&["router", &path, "--check"]);
    assert_eq!(check.code, 0, "{check:?}");
    assert!(check.stdout.contains("left: both ws://127.0.0.1"), "{check:?}");
    let mut running = Running::start(middle.command(&["router", &path]));
    wait_for_metric(port, "hark_router_in_step", "left", 1);
    middle.wait_for(30);
    write(&file, "[streams.left]\nurl = 5\n");
    running.wait_for_log("nothing was changed");
    assert_eq!(metric(port, "hark_router_connected", "left"), Some(1));
    write(&file, &both);
    wait_for_metric(port, "hark_router_in_step", "right", 1);
    for node in [&left, &middle, &right] {
        node.wait_for(60);
    }
    // The router has kept the connection of the unchanged stream.
    assert_eq!(metric(port, "hark_router_connections_total", "left"), Some(1));
    let live = publish(&left, "live", 25);
    for node in [&middle, &right] {
        node.wait_for(85);
    }
    // Events are not sent back to their source.
    assert_eq!(metric(port, "hark_router_sent_events_total", "left"), Some(40));
    assert!(right.ids("{}").is_superset(&live.iter().map(|line| id(line)).collect()));
    for round in 0..3 {
        let gone = [&mut left, &mut middle, &mut right].into_iter().nth(round).unwrap();
        gone.kill();
        let others = if round == 0 { &right } else { &left };
        publish(others, &format!("round {round}"), 12);
        let gone = [&mut left, &mut middle, &mut right].into_iter().nth(round).unwrap();
        gone.serve();
        for node in [&left, &middle, &right] {
            node.wait_for(85 + 12 * (round + 1));
        }
    }
    let done = running.stop();
    assert_eq!(done.code, 0, "{done:?}");
    assert_eq!(left.ids("{}"), right.ids("{}"));
    assert_eq!(left.ids("{}"), middle.ids("{}"));
}

/// The accepted kinds and the key for authentication change while the router runs. An invalid
/// configuration is reported and changes nothing.
#[test]
fn the_configuration_and_the_keys_are_read_again() {
    let there = Node::served("router-reload-there", "", &notes("there", 12, now_s() - 99));
    let here = Node::new("router-reload-here", "[policy]\ndeny_kinds = [7]\n", &[]);
    let (port, file, key) = (free_port(), here.path("router.toml"), here.path("relay.key"));
    let settings = here.path("hark.toml");
    write(&key, &"11".repeat(32));
    write(
        &file,
        &format!(
            "metrics = \"127.0.0.1:{port}\"\n[streams.a]\nurls = [\"{}\"]\nkey_file = \"{}\"\n",
            there.url(),
            key.display()
        ),
    );
    let mut running = Running::start(here.command(&["router", &file.to_string_lossy()]));
    wait_for_metric(port, "hark_router_in_step", "a", 1);
    here.wait_for(9);
    assert_eq!(metric(port, "hark_router_refused_events_total", "a"), Some(3));
    write(&settings, "[policy]\ndeny_kinds = \"seven\"\n");
    running.wait_for_log("nothing was changed");
    write(&settings, "[policy]\ndeny_kinds = [1]\n");
    // The old configuration refuses events until the new configuration applies.
    running.wait_for_log("now policy.deny_kinds");
    running.wait_for_log("the file is in force");
    publish(&there, "live", 8);
    here.wait_for(13);
    assert_eq!(here.ids(r#"{"kinds":[7]}"#).len(), 2);
    assert_eq!(metric(port, "hark_router_connections_total", "a"), Some(1));
    write(&key, &"22".repeat(32));
    running.wait_for_log("the file is in force");
    wait_for_metric(port, "hark_router_in_step", "a", 1);
    let done = running.stop();
    assert_eq!(done.code, 0, "{done:?}");
    let said = |words: &str| done.stderr.matches(words).count();
    assert_eq!(said("nothing was changed"), 1, "{done:?}");
    assert!(said("deny_kinds") >= 2 && said("now policy.deny_kinds") == 1, "{done:?}");
    // Only the changed key restarts the stream.
    assert_eq!((said("begun=1 ended=1"), said("begun=0 ended=0")), (1, 1), "{done:?}");
}

/// Deletion requests and requests to vanish take effect, whatever the plugin decides.
#[test]
fn a_plugin_that_refuses_everything_lets_deletions_and_requests_to_vanish_in() {
    let at = now_s() - 99;
    let gone =
        [event_line(1, at, 1, &[], "to be deleted"), event_line(2, at, 1, &[], "before vanishing")];
    let requests = [
        event_line(1, at + 1, 5, &[&["e", &id(&gone[0])]], ""),
        event_line(2, at + 1, 62, &[&["relay", "ALL_RELAYS"]], ""),
    ];
    let refused = event_line(3, at, 1, &[], "refused");
    let there = Node::served("router-plugin-there", "", &[requests.concat(), refused]);
    let here = Node::new("router-plugin-here", "", &gone);
    let (port, file, plugin) = (free_port(), here.path("router.toml"), here.path("refuse.sh"));
    let script = r#"while read -r line; do
        id=${line#*'"id":"'}; id=${id%%'"'*}
        echo '{"id":"'$id'","action":"reject","msg":"blocked: nothing passes"}'
    done
    "#;
    write(&plugin, script);
    write(
        &file,
        &format!(
            "metrics = \"127.0.0.1:{port}\"\n[streams.a]\nurls = [\"{}\"]\n\
             plugin_down = \"sh {}\"\n",
            there.url(),
            plugin.display()
        ),
    );
    let running = Running::start(here.command(&["router", &file.to_string_lossy()]));
    wait_for_metric(port, "hark_router_stored_events_total", "a", 2);
    wait_for_metric(port, "hark_router_refused_events_total", "a", 1);
    let done = running.stop();
    assert_eq!(done.code, 0, "{done:?}");
    let expected: BTreeSet<String> = requests.iter().map(|line| id(line)).collect();
    assert_eq!(here.ids("{}"), expected);
}

#[test]
fn a_file_that_cannot_be_used_is_refused_with_the_reason() {
    let node = Node::new("router-file", "", &[]);
    let file = node.path("router.toml");
    let path = file.to_string_lossy().into_owned();
    for (text, said) in [
        ("", "names no stream"),
        ("[streams.a]\nurls = []\n", "`urls` is empty"),
        ("[streams.a]\nurls = [\"https://x\"]\n", "wss://"),
        ("[streams.a]\nurls = [\"wss://x:y\"]\n", "port"),
        ("[streams.a]\nurls = [\"wss://x\"]\ndirection = \"up\"\n", "direction"),
        ("[streams.a]\nurls = [\"wss://x\"]\nfilter = { kinds = \"a\" }\n", "filter"),
        ("[streams.a]\nurls = [\"wss://x\"]\nfilter = { limit = 5 }\n", "limit"),
        ("[streams.a]\nurls = [\"wss://x\"]\ncatch_up = \"long\"\n", "catch_up"),
        ("[streams.a]\nurls = [\"wss://x\"]\ntimeout_s = 0\n", "timeout_s"),
    ] {
        write(&file, text);
        let done = node.run(&["router", &path, "--check"]);
        assert_eq!(done.code, 2, "{text} {done:?}");
        assert!(done.stderr.contains(said), "{text} {done:?}");
    }
    let done = node.run(&["router", "nowhere.toml"]);
    assert_eq!(done.code, 1, "{done:?}");
}
