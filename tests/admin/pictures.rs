//! Writes the pictures of the pages in the documents.

use std::fs;

use hark_testkit::clock::now_s;
use hark_testkit::nostr::event_json;
use serde_json::json;

use super::{Socket, key, log_in, npub_of};
use crate::browser::Browser;
use crate::served::Relay;

/// Writes a picture of the page.
fn picture(browser: &mut Browser, name: &str) {
    let shot = browser
        .call("Page.captureScreenshot", &json!({"format": "png", "optimizeForSpeed": false}));
    let bytes = base64_simd::STANDARD.decode_to_vec(shot["data"].as_str().expect("a picture"));
    let path = format!("{}/docs/images/{name}.png", env!("CARGO_MANIFEST_DIR"));
    fs::write(path, bytes.expect("base64")).expect("is written");
}

#[test]
#[ignore = "writes the pictures in docs/images: just pictures"]
fn pictures_of_the_pages_are_written() {
    let settings = format!(
        "[info]\nname = \"Owl Relay\"\nurl = \"wss://relay.example\"\npubkey = \"{owner}\"\n\
         description = \"A relay for people who watch birds at night.\"\n\
         contact = \"mailto:owl@relay.example\"\n\
         terms = \"Write about birds. No advertising.\"\n\
         privacy = \"Addresses of clients are kept in memory only while they are connected.\"\n\
         [manage]\nkeys = [\"{owner}\"]\n\
         roles = [{{ id = \"moderator\", methods = [\"banevent\", \"allowevent\", \
         \"listeventsneedingmoderation\"], keys = [\"{helper}\"] }}]\n\
         [retention]\nrules = [{{ kinds = [7], older_than = \"90d\" }}]\n",
        owner = key(1),
        helper = key(2)
    );
    let relay = Relay::start("pictures", &settings);
    let mut client = Socket::open(&relay);
    let mut notes = Vec::new();
    for (secret, name, text) in [
        (11, "Barn owl", "Heard two tawny owls behind the mill tonight."),
        (12, "Cheap watches", "CHEAP WATCHES!!! Click here: https://watches.example"),
        (13, "nightjar", "Follow me for free coins"),
    ] {
        client.publish(&event_json(secret, now_s(), 0, &[], &json!({ "name": name }).to_string()));
        notes.push(client.publish(&event_json(secret, now_s(), 1, &[], text)).0);
    }
    for (secret, note, kind) in [(14, 1, "spam"), (15, 1, "spam"), (14, 2, "impersonation")] {
        let tags: [&[&str]; 1] = [&["e", &notes[note], kind]];
        client.publish(&event_json(secret, now_s(), 1984, &tags, "Again and again."));
    }
    let ban = |args: &[&str]| {
        let done = relay.place.command(args).output().expect("the binary runs");
        assert!(done.status.success(), "{done:?}");
    };
    ban(&["ban", "198.51.100.0/24", "--reason", "a flood of events", "--for", "7d"]);
    ban(&["ban", &npub_of(21), &npub_of(22), "--reason", "spam"]);
    ban(&["allow", &npub_of(11), "--reason", "asked by mail"]);
    let mut browser = Browser::start("pictures");
    log_in(&mut browser, &relay);
    let base = format!("http://{}", relay.address());
    for (scheme, of_scheme) in [("light", ""), ("dark", "-dark")] {
        let features = json!([{"name": "prefers-color-scheme", "value": scheme}]);
        browser.call("Emulation.setEmulatedMedia", &json!({"features": features}));
        for (width, of_width) in [(1280, ""), (390, "-phone")] {
            for (path, name) in [("/", "page"), ("/admin/reports", "admin")] {
                browser.open(&format!("{base}{path}"), width);
                let size = json!({
                    "width": width, "height": 844, "deviceScaleFactor": 1, "mobile": width < 600,
                });
                browser.call("Emulation.setDeviceMetricsOverride", &size);
                picture(&mut browser, &format!("{name}{of_width}{of_scheme}"));
            }
        }
    }
    // Further pages, for a look: HARK_PICTURES names their folder.
    let Ok(folder) = std::env::var("HARK_PICTURES") else { return };
    for (width, of_width) in [(1280, ""), (390, "-phone")] {
        for path in ["", "/clients", "/bans", "/reports", "/members", "/roles", "/log"] {
            browser.open(&format!("{base}/admin{path}"), width);
            let name = format!("{}{of_width}", path.trim_start_matches('/'));
            let all = json!({"format": "png", "captureBeyondViewport": true});
            let shot = browser.call("Page.captureScreenshot", &all);
            let bytes = base64_simd::STANDARD.decode_to_vec(shot["data"].as_str().expect("data"));
            fs::write(format!("{folder}/admin-{name}.png"), bytes.expect("base64"))
                .expect("written");
        }
    }
}
