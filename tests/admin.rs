//! The page for managers, `/admin`: in a real browser, and with requests that must be refused.

use std::net::TcpStream;

use hark_codec::crypto::KeyPair;
use hark_codec::hex;
use hark_codec::nostr::npub;
use hark_testkit::clock::now_s;
use hark_testkit::http::{HttpReply, HttpRequest};
use hark_testkit::nostr::event_json;
use hark_testkit::wait::until;
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::stream::MaybeTlsStream;
use tokio_tungstenite::tungstenite::{Message, WebSocket, connect};

use crate::browser::{BEYOND, Browser};
use crate::served::Relay;

mod pictures;
mod refused;

/// Markup in a name, a reason or an event. It must be shown as text.
pub(crate) const MARKUP: &str =
    "<script>document.title='run'</script><img src=x onerror=alert(1)>\"'";

pub(crate) fn keys(secret: u8) -> KeyPair {
    KeyPair::from_secret([secret; 32]).expect("a secret key")
}

pub(crate) fn key(secret: u8) -> String {
    String::from_utf8(hex::encode_32(keys(secret).public()).to_vec()).expect("digits")
}

pub(crate) fn npub_of(secret: u8) -> String {
    npub::encode(keys(secret).public())
}

/// Settings with an admin and a role for reports.
pub(crate) fn settings() -> String {
    format!(
        "[info]\nname = \"A relay <for tests>\"\n[manage]\nkeys = [\"{}\"]\n\
         roles = [{{ id = \"helper\", methods = [\"listeventsneedingmoderation\", \"banevent\"], \
         keys = [\"{}\"] }}]\n",
        key(1),
        key(2)
    )
}

/// Makes a link, and returns its URL.
pub(crate) fn link(relay: &Relay) -> String {
    let made = relay.place.command(&["admin", "link"]).output().expect("the binary runs");
    let text = String::from_utf8(made.stdout).expect("text");
    assert!(made.status.success(), "{text}{}", String::from_utf8_lossy(&made.stderr));
    text.trim().to_owned()
}

/// A client of the relay.
pub(crate) struct Socket(WebSocket<MaybeTlsStream<TcpStream>>);

impl Socket {
    pub(crate) fn open(relay: &Relay) -> Self {
        Self(connect(relay.url()).expect("the relay answers").0)
    }

    /// Sends a message, and returns the next answer of this type.
    pub(crate) fn ask(&mut self, message: &Value, answer: &str) -> Value {
        self.0.send(Message::text(message.to_string())).expect("sent");
        loop {
            let Message::Text(text) = self.0.read().expect("an answer") else { continue };
            let received: Value = serde_json::from_str(&text).expect("JSON");
            if received[0] == answer {
                return received;
            }
        }
    }

    /// Publishes an event. Returns its id, and the relay's reason if the event is refused.
    pub(crate) fn publish(&mut self, event: &str) -> (String, Option<String>) {
        let event: Value = serde_json::from_str(event).expect("JSON");
        let ok = self.ask(&json!(["EVENT", event]), "OK");
        let id = event["id"].as_str().expect("an id").to_owned();
        let reason = ok[3].as_str().unwrap_or_default().to_owned();
        (id, (ok[2] != true).then_some(reason))
    }

    /// The number of events that a filter finds.
    pub(crate) fn count(&mut self, filter: &Value) -> Value {
        self.ask(&json!(["COUNT", "n", filter]), "COUNT")[2]["count"].take()
    }

    /// Whether the relay has closed the connection.
    pub(crate) fn is_closed(&mut self) -> bool {
        loop {
            match self.0.read() {
                Ok(Message::Close(_)) | Err(_) => return true,
                Ok(_) => {}
            }
        }
    }
}

/// Logs in with a link.
pub(crate) fn log_in(browser: &mut Browser, relay: &Relay) {
    // The name in [info] url may not lead to this server.
    let link = link(relay);
    let path = link.find("/admin/").map(|at| &link[at..]).expect("a path");
    browser.open(&format!("http://{}{path}", relay.address()), 1280);
    browser.ask("document.querySelector('main form button').click()");
    browser.wait("document.querySelector('h1')?.textContent", &json!("Overview"));
}

/// The whole text of the page.
fn text(browser: &mut Browser) -> String {
    browser.ask("document.body.innerText").as_str().expect("text").to_owned()
}

/// Sends the first form that has this button.
fn press(browser: &mut Browser, button: &str) {
    let quoted = json!(button);
    browser.ask(&format!(
        "[...document.querySelectorAll('button')].find(b => b.textContent === {quoted}).click()"
    ));
}

/// Checks that the page shows markup as text, and that axe finds no serious fault.
fn check_page(browser: &mut Browser, axe: &str, page: &str) {
    for width in [360, 1280] {
        browser.resize(width);
        assert_eq!(browser.ask(BEYOND), json!([]), "{page} at {width}");
    }
    let made = "document.querySelectorAll('main script, main img').length";
    assert_eq!(browser.ask(made), json!(0), "{page}");
    assert_ne!(browser.ask("document.title"), json!("run"), "{page}");
    browser.ask(axe);
    for scheme in ["light", "dark"] {
        let features = json!([{"name": "prefers-color-scheme", "value": scheme}]);
        browser.call("Emulation.setEmulatedMedia", &json!({"features": features}));
        let found = browser.ask(
            "axe.run(document, {resultTypes: ['violations']}).then(r => r.violations\
             .filter(v => ['serious', 'critical'].includes(v.impact))\
             .map(v => v.id + ': ' + v.nodes[0].html))",
        );
        assert_eq!(found, json!([]), "{page}, {scheme}");
    }
}

/// The source of axe-core, which finds faults of accessibility, from npm.
fn axe() -> String {
    script("axe-core/axe.min.js")
}

/// A script from npm.
fn script(name: &str) -> String {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/js/node_modules");
    std::fs::read_to_string(format!("{folder}/{name}")).unwrap_or_else(|error| {
        panic!("{name}: {error}: run scripts/test, or `npm ci` in tests/js")
    })
}

#[test]
fn a_person_with_a_link_bans_allows_and_closes_and_markup_stays_text() {
    let relay = Relay::start("admin-link", &settings());
    let base = format!("http://{}", relay.address());
    let mut client = Socket::open(&relay);
    let profile = json!({ "name": MARKUP }).to_string();
    let (note, refused) = client.publish(&event_json(5, now_s(), 1, &[], MARKUP));
    assert_eq!(refused, None);
    client.publish(&event_json(5, now_s(), 0, &[], &profile));
    let report = event_json(6, now_s(), 1984, &[&["e", &note, "spam"], &["p", &key(5)]], MARKUP);
    client.publish(&report);
    client.publish(&event_json(7, now_s(), 1, &[], "unwanted"));

    let axe = axe();
    let mut browser = Browser::start("admin-link");
    log_in(&mut browser, &relay);
    let shown = text(&mut browser);
    for part in ["ok", "grows a day by", "events accepted", "A relay <for tests>", "link ("] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    check_page(&mut browser, &axe, "overview");

    // A ban with markup in its reason.
    browser.open(&format!("{base}/admin/bans"), 1280);
    let fill = |name: &str, value: &str| {
        format!("document.querySelector('#new [name={name}]').value = {};", json!(value))
    };
    browser.ask(
        &[fill("subject", &npub_of(7)), fill("reason", MARKUP), fill("for", "86400")].concat(),
    );
    press(&mut browser, "Ban");
    browser.wait("document.querySelectorAll('tbody tr').length", &json!(1));
    let shown = text(&mut browser);
    assert!(shown.contains(MARKUP) && shown.contains("is banned until 2"), "{shown}");
    check_page(&mut browser, &axe, "bans");
    let (_, refused) = client.publish(&event_json(7, now_s() + 1, 1, &[], "again"));
    assert!(refused.is_some_and(|reason| reason.contains(MARKUP)));
    assert_eq!(client.count(&json!({"authors": [key(7)]})), json!(0), "its events are hidden");
    press(&mut browser, "Lift");
    let none = "document.querySelector('.none')?.textContent";
    browser.wait(none, &json!("This list is empty."));
    assert_eq!(client.count(&json!({"authors": [key(7)]})), json!(1));

    // A report, whose event and author have markup.
    browser.open(&format!("{base}/admin/reports"), 1280);
    let shown = text(&mut browser);
    assert!(shown.contains("1 reporter") && shown.matches("<script>").count() >= 3, "{shown}");
    check_page(&mut browser, &axe, "reports");
    press(&mut browser, "Ban event");
    browser.wait(none, &json!("Nothing is reported."));
    assert_eq!(client.count(&json!({"ids": [note]})), json!(0));

    // Members and roles.
    browser.open(&format!("{base}/admin/members"), 1280);
    browser.ask(&format!(
        "document.querySelector('[name=subject]').value = '{}'; \
         document.querySelector('[name=reason]').value = {};",
        npub_of(5),
        json!(MARKUP)
    ));
    press(&mut browser, "Add");
    browser.wait("document.querySelectorAll('tbody tr').length", &json!(1));
    check_page(&mut browser, &axe, "members");
    browser.open(&format!("{base}/admin/roles"), 1280);
    browser.ask(
        "document.querySelector('section:last-of-type [name=role]').value = 'king'; \
         document.querySelector('section:last-of-type [name=label]').value = '<b>King</b>';",
    );
    press(&mut browser, "Create");
    browser.wait("document.querySelectorAll('.role').length", &json!(2));
    browser.ask(&format!(
        "document.querySelector('.role:nth-of-type(2) [name=key]').value = '{}'",
        npub_of(5)
    ));
    browser.ask("document.querySelectorAll('.role')[1].querySelector('button').click()");
    browser.wait("document.querySelectorAll('.keys li').length", &json!(2));
    check_page(&mut browser, &axe, "roles");

    // A connection.
    browser.open(&format!("{base}/admin/clients?sort=rows"), 1280);
    assert!(text(&mut browser).contains("127.0.0.1"));
    check_page(&mut browser, &axe, "clients");
    browser.ask(
        "[...document.querySelectorAll('tbody tr')].find(row => row.innerText.includes('websocket'))\
         .querySelector('button').click()",
    );
    browser.wait("document.querySelector('.notice')?.textContent", &json!("1 connection closed."));
    assert!(client.is_closed());

    // The audit log names the maker of the link, with every act.
    browser.open(&format!("{base}/admin/log"), 1280);
    let shown = text(&mut browser);
    for act in ["ban", "unban", "allow", "createrole", "assignrole", "kick"] {
        assert!(shown.contains(act), "{act}: {shown}");
    }
    check_page(&mut browser, &axe, "log");
    let log = relay.place.command(&["log", "--json"]).output().expect("the binary runs");
    let log = String::from_utf8(log.stdout).expect("text");
    assert_eq!(log.lines().count(), 7, "{log}");
    assert!(log.lines().all(|line| line.contains("\"by\":\"link (")), "{log}");

    press(&mut browser, "Log out");
    browser.wait("document.querySelector('h1')?.textContent", &json!("Log in"));
    check_page(&mut browser, &axe, "login");
    browser.open(&format!("{base}/admin/clients"), 1280);
    assert!(text(&mut browser).contains("hark admin link"));
    // Only the styles and scripts of the relay were loaded, and no policy was violated.
    let faults = browser.events.iter().filter(|event| {
        event["method"] == "Log.entryAdded" && event["params"]["entry"]["source"] == "security"
    });
    assert_eq!(faults.count(), 0);
}

/// Makes the extension that signs with a key (NIP-07), as a script.
fn extension(secret: u8) -> String {
    let bundle = script("nostr-tools/lib/nostr.bundle.js");
    format!(
        "{bundle};window.nostr = {{ signEvent: async event => \
         NostrTools.finalizeEvent(event, new Uint8Array(32).fill({secret})) }};"
    )
}

#[test]
fn a_manager_logs_in_with_a_key_and_sees_only_the_pages_of_the_role() {
    let relay = Relay::start("admin-key", &settings());
    let base = format!("http://{}", relay.address());
    for (secret, pages) in [
        (
            1,
            json!([
                "Overview",
                "Clients",
                "Bans and allows",
                "Reports",
                "Members",
                "Roles",
                "Audit log"
            ]),
        ),
        (2, json!(["Overview", "Bans and allows", "Reports"])),
    ] {
        let mut browser = Browser::start(&format!("admin-key-{secret}"));
        let added = json!({ "source": extension(secret) });
        browser.call("Page.addScriptToEvaluateOnNewDocument", &added);
        browser.open(&format!("{base}/admin"), 1280);
        press(&mut browser, "Log in with a key");
        browser.wait("document.querySelector('h1')?.textContent", &json!("Overview"));
        let links = "[...document.querySelectorAll('.bar nav a')].map(a => a.textContent)";
        assert_eq!(browser.ask(links), pages);
        let who = "document.querySelector('.person .id').title";
        assert_eq!(browser.ask(who), json!(npub_of(secret)));
        browser.open(&format!("{base}/admin/log"), 1280);
        let is_refused = text(&mut browser).contains("Your roles do not include this page.");
        assert_eq!(is_refused, secret == 2);
    }
    // A key that manages nothing is refused, with the reason.
    let mut browser = Browser::start("admin-key-none");
    let added = json!({ "source": extension(9) });
    browser.call("Page.addScriptToEvaluateOnNewDocument", &added);
    browser.open(&format!("{base}/admin"), 1280);
    press(&mut browser, "Log in with a key");
    let fault = "document.getElementById('key-fault').textContent.trim()";
    browser.wait(fault, &json!("this key does not manage this relay"));
}

/// Sends a form from the page itself.
pub(crate) fn post(relay: &Relay, path: &str, cookie: &str, body: &str) -> HttpReply {
    let origin = format!("http://{}", relay.address());
    let request = HttpRequest::new("POST", path).header("Origin", &origin).header("Cookie", cookie);
    let request = request.header("Content-Type", "application/x-www-form-urlencoded");
    request.body(body).send(relay.address())
}

/// Waits until a condition holds for the events of a key.
pub(crate) fn wait_for_count(relay: &Relay, filter: &Value, expected: u64) {
    until("the number of events", || Socket::open(relay).count(filter) == json!(expected));
}
