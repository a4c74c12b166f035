//! The operator's plugin, beside the real server: the example, inherited files, and the end of the
//! plugin's processes.

use std::fs;
use std::path::{Path, PathBuf};

use hark_testkit::clock::now_s;
use hark_testkit::nostr::note;
use hark_testkit::wait::until;

use super::kit::connect;
use crate::served::{Place, Relay};

/// A plugin that writes its process id and its open files to the folder of the configuration, and
/// accepts everything.
const WITNESS: &str = r#"#!/bin/sh
echo $$ >> pids
for file in /proc/$$/fd/*; do echo "${file##*/} $(readlink "$file")"; done > files
env > variables
while read -r line; do
    id=${line#*'"id":"'}; id=${id%%'"'*}
    echo '{"id":"'$id'","action":"accept"}'
done
"#;

fn pids(place: &Place) -> Vec<String> {
    let text = fs::read_to_string(place.folder.join("pids")).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

fn runs(pid: &str) -> bool {
    let status = fs::read_to_string(Path::new("/proc").join(pid).join("stat"));
    // A process that has ended and was not waited for has the state Z.
    status.is_ok_and(|text| !text.contains(") Z "))
}

fn witness(name: &str) -> Place {
    let place = Place::new(name, "[plugin]\ncommand = \"exec sh witness.sh\"\n");
    place.folder.file("witness.sh", WITNESS);
    place
}

#[tokio::test(flavor = "multi_thread")]
async fn the_example_of_a_plugin_works() {
    let example = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("examples/plugin/no_casinos.py");
    let settings = format!("[plugin]\ncommand = \"{}\"\n", example.display());
    let place = Place::new("plugin-example", &settings);
    let relay = Relay { server: place.start(), place };
    let mut client = connect(&relay).await;
    client.publish_new(&note(1, now_s(), "hi")).await;
    let casino = client.publish(&note(1, now_s(), "My CASINO")).await;
    assert_eq!(casino, (false, "blocked: no casinos".into()));
    let links = note(1, now_s(), &"https://a.example ".repeat(11));
    assert_eq!(client.publish(&links).await, (true, String::new()));
    assert!(client.find_now(&[serde_json::json!({ "ids": [links["id"]] })]).await.is_empty());
    let logged = "the plugin reports: reject for 127.0.0.1";
    until(logged, || relay.server.log().contains(logged));
}

/// A socket or a lock that a plugin holds would outlive the server, and stop the next server.
#[tokio::test(flavor = "multi_thread")]
async fn a_plugin_inherits_no_file_and_ends_with_its_server() {
    for ends_by in ["TERM", "KILL"] {
        let place = witness("plugin-witness");
        let mut relay = Relay { server: place.start(), place: place.clone() };
        connect(&relay).await.publish_new(&note(1, now_s(), "hi")).await;
        let files = fs::read_to_string(place.folder.join("files")).unwrap();
        for line in files.lines() {
            // Files of other kinds come from the shell that has started this test.
            let (_, target) = line.split_once(' ').unwrap();
            let is_of_server = target.starts_with("socket:") || target.contains("/data/");
            assert!(!is_of_server, "{files}");
        }
        let variables = fs::read_to_string(place.folder.join("variables")).unwrap();
        assert!(!variables.contains("NOTIFY_SOCKET"), "{variables}");
        let pid = pids(&place).pop().unwrap();
        assert!(runs(&pid));
        relay.server.signal(ends_by);
        relay.server.wait_for_end(hark_testkit::wait::PATIENCE).expect("the server ends");
        until("the plugin ends", || !runs(&pid));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_server_of_a_takeover_has_a_plugin_of_its_own() {
    let place = witness("plugin-takeover");
    let old = Relay { server: place.start(), place: place.clone() };
    let mut before = connect(&old).await;
    before.publish_new(&note(1, now_s(), "before")).await;
    let new = Relay { server: place.take_over(), place: place.clone() };
    // The old server may still accept a connection, until it learns of the takeover.
    for number in 0.. {
        let mut after = connect(&new).await;
        after.publish_new(&note(1, now_s(), &format!("after {number}"))).await;
        if pids(&place).len() > 1 {
            break;
        }
    }
    before.publish_new(&note(1, now_s(), "on the old connection")).await;
    let both = pids(&place);
    assert!(both.len() == 2 && both.iter().all(|pid| runs(pid)), "{both:?}");
    drop(before);
    until("the plugin of the old server ends", || !runs(&both[0]));
    assert!(runs(&both[1]));
}
