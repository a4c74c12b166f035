//! The page for people, in a real browser.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;

use hark_testkit::nostr::event_line;
use hark_testkit::server::Server;
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::{Message, connect};

use crate::browser::{BEYOND, Browser, CONTRAST};
use crate::cli::support::Place;

fn serve(place: &Place) -> Server {
    // Words without a possible line break must not make the page wider than a phone.
    let config = format!(
        "[info]\nname = \"A relay for <readers>\"\ndescription = \"First line\\n{}\"\n\
         pubkey = \"{}\"\ncontact = \"mailto:somebody@relay.example\"\n\
         [retention]\nrules = [{{ kinds = [7], older_than = \"90d\" }}]\n",
        "long".repeat(60),
        "ab".repeat(32),
    );
    let config = place.file("hark.toml", config.as_bytes());
    place.serve_with(&["--config", &config])
}

#[test]
fn the_page_reads_well_on_a_phone_and_its_counts_stay_fresh() {
    let place = Place::new("page");
    let server = serve(&place);
    let url = format!("http://{}/", server.address);
    let mut browser = Browser::start("page");
    for width in [320, 390, 1280] {
        browser.open(&url, width);
        assert_eq!(browser.ask("innerWidth"), json!(width));
        let wide = "document.documentElement.scrollWidth > innerWidth";
        assert_eq!(browser.ask(wide), json!(false), "{width}");
        assert_eq!(browser.ask(BEYOND), json!([]), "{width}");
    }
    assert_eq!(browser.ask("document.title"), json!("A relay for <readers>"));
    assert_eq!(browser.ask("document.querySelector('h1').textContent"), "A relay for <readers>");
    let address = format!("ws://{}", server.address);
    assert_eq!(browser.ask("document.getElementById('url').textContent"), json!(address));
    let text = browser.ask("document.body.innerText");
    for part in [
        "How to join",
        "Events of kind 7 stay for 90 days.",
        "1.1 MiB",
        "500, 5,000 if asked",
        "somebody@relay.example",
        "Hark 0",
    ] {
        assert!(text.as_str().unwrap().contains(part), "{part}: {text}");
    }

    assert_eq!(browser.ask("document.getElementById('events').textContent"), "0");
    // A reader of the page does not count as a client.
    assert_eq!(browser.ask("document.getElementById('connections').textContent"), "0");
    assert_eq!(browser.ask("document.images.length"), json!(0));
    let note = event_line(1, 1_700_000_000, 1, &[], "counted");
    let (mut client, _) = connect(&address).expect("the relay answers");
    client.send(Message::text(format!("[\"EVENT\",{}]", note.trim()))).expect("sent");
    let ok = loop {
        let received = client.read().expect("an answer").to_string();
        if received.starts_with("[\"OK\"") {
            break received;
        }
    };
    assert!(ok.contains("true"), "{ok}");
    browser.wait("document.getElementById('events').textContent", &json!("1"));
    assert_eq!(browser.ask("document.getElementById('connections').textContent"), "1");
    assert_eq!(browser.ask("document.getElementById('oldest').textContent"), "2023-11-14");

    let mut papers = Vec::new();
    for scheme in ["light", "dark"] {
        let features = json!([{"name": "prefers-color-scheme", "value": scheme}]);
        browser.call("Emulation.setEmulatedMedia", &json!({"features": features}));
        let contrast = browser.ask(CONTRAST).as_f64().unwrap();
        assert!(contrast >= 4.5, "{scheme}: {contrast}");
        papers.push(browser.ask("getComputedStyle(document.body).backgroundColor"));
    }
    assert_ne!(papers[0], papers[1], "dark is as light");

    // Without scripts the page is complete, with the values at the time of the request.
    browser.call("Emulation.setScriptExecutionDisabled", &json!({"value": true}));
    browser.open(&url, 390);
    assert_eq!(browser.ask("document.getElementById('events').textContent"), "1");
    assert_eq!(browser.ask("document.getElementById('copy').offsetParent"), Value::Null);

    let of = |method| browser.events.iter().filter(move |event| event["method"] == method);
    let mut asked = of("Network.requestWillBeSent").map(|event| &event["params"]["request"]["url"]);
    let elsewhere = asked.find(|asked| {
        let asked = asked.as_str().unwrap_or_default();
        !asked.starts_with(&url) && !asked.starts_with("data:")
    });
    assert_eq!(elsewhere, None, "it asks others");
    for method in ["Log.entryAdded", "Runtime.exceptionThrown"] {
        let said: Vec<_> = of(method).collect();
        assert!(said.is_empty(), "{said:?}");
    }
    let sizes =
        of("Network.loadingFinished").filter_map(|e| e["params"]["encodedDataLength"].as_u64());
    assert!(sizes.clone().max().is_some_and(|largest| (1..20_000).contains(&largest)));
    assert_eq!(server.terminate().0, 0);
}

/// A picture of 2 by 1 pixels.
const PICTURE: &str = "<svg xmlns='http://www.w3.org/2000/svg' width='2' height='1'/>";

/// Answers each request to an address of this machine with [`PICTURE`]. Returns the address.
fn serve_pictures() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("an address");
    let address = listener.local_addr().expect("an address").to_string();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.expect("is accepted");
            let mut line = String::new();
            let mut lines = BufReader::new(stream.try_clone().expect("is cloned"));
            while lines.read_line(&mut line).is_ok_and(|bytes| bytes > 2) {
                line.clear();
            }
            let answer = format!(
                "HTTP/1.1 200 OK\r\nContent-Type: image/svg+xml\r\nContent-Length: {}\r\n\
                 Connection: close\r\n\r\n{PICTURE}",
                PICTURE.len()
            );
            // The browser may have disconnected.
            let _ = stream.write_all(answer.as_bytes());
        }
    });
    address
}

#[test]
fn the_page_shows_the_pictures_of_the_relay_and_asks_nobody_else() {
    let (icons, banners) = (serve_pictures(), serve_pictures());
    let place = Place::new("page-pictures");
    let config = format!(
        "[info]\nicon = \"http://{icons}/icon.svg\"\nbanner = \"http://{banners}/b.svg?w=9\"\n"
    );
    let config = place.file("hark.toml", config.as_bytes());
    let server = place.serve_with(&["--config", &config]);
    let url = format!("http://{}/", server.address);
    let mut browser = Browser::start("page-pictures");
    for width in [320, 1280] {
        browser.open(&url, width);
        let sizes = "[...document.images].map(i => [i.className, i.naturalWidth])";
        browser.wait(sizes, &json!([["banner", 2], ["icon", 2]]));
        assert_eq!(browser.ask(BEYOND), json!([]), "{width}");
    }
    let of = |method| browser.events.iter().filter(move |event| event["method"] == method);
    let asked = of("Network.requestWillBeSent").map(|event| &event["params"]["request"]["url"]);
    let pictures = [format!("http://{icons}/icon.svg"), format!("http://{banners}/b.svg?w=9")];
    for asked in asked.filter_map(Value::as_str) {
        let is_known = asked.starts_with(&url) || asked.starts_with("data:");
        assert!(is_known || pictures.iter().any(|known| known == asked), "it asks {asked}");
    }
    // A picture from another address is not loaded.
    let other = serve_pictures();
    let insert =
        format!("document.body.append(Object.assign(new Image(), {{src: 'http://{other}/'}}))");
    browser.ask(&insert);
    browser.wait("document.images[2].complete && document.images[2].naturalWidth", &json!(0));
    assert_eq!(server.terminate().0, 0);
}
