//! The page for people, in a real browser: Chromium, driven over its DevTools protocol.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use hark_testkit::folder::Folder;
use hark_testkit::nostr::event_line;
use hark_testkit::server::Server;
use hark_testkit::wait::{PATIENCE, until_ok};
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::stream::MaybeTlsStream;
use tokio_tungstenite::tungstenite::{Message, WebSocket, connect};

use crate::cli::support::Place;

/// A browser with one tab. The browser ends with the test.
struct Browser {
    process: Child,
    /// Removed after the browser has ended.
    _profile: Folder,
    socket: WebSocket<MaybeTlsStream<TcpStream>>,
    tab: Option<String>,
    calls: u64,
    /// Events of the tab that are not answers to commands.
    events: Vec<Value>,
}

impl Browser {
    fn start(test: &str) -> Self {
        let profile = Path::new(env!("CARGO_TARGET_TMPDIR")).join("browser").join(test);
        let profile = Folder::at(profile);
        let mut process = Command::new("chromium")
            .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"])
            .args(["--no-first-run", "--disable-background-networking", "--disable-sync"])
            .args(["--disable-component-update", "--disable-extensions", "--no-proxy-server"])
            .args(["--remote-debugging-address=127.0.0.1", "--remote-debugging-port=0"])
            .arg(format!("--user-data-dir={}", profile.display()))
            .arg("about:blank")
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("there is no chromium: install it, or run scripts/test, which does");
        let mut lines = BufReader::new(process.stderr.take().expect("piped")).lines();
        let url = lines.by_ref().map_while(Result::ok).find_map(|line| {
            line.strip_prefix("DevTools listening on ").map(|url| url.trim().to_owned())
        });
        // A thread reads the other output, so that the browser never waits for a reader.
        std::thread::spawn(move || lines.for_each(drop));
        let (socket, _) = connect(url.expect("its address")).expect("the browser answers");
        if let MaybeTlsStream::Plain(stream) = socket.get_ref() {
            stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        }
        let mut browser =
            Self { process, _profile: profile, socket, tab: None, calls: 0, events: Vec::new() };
        let target = browser.call("Target.createTarget", &json!({"url": "about:blank"}));
        let attach = json!({"targetId": target["targetId"], "flatten": true});
        let session = browser.call("Target.attachToTarget", &attach);
        browser.tab = session["sessionId"].as_str().map(str::to_owned);
        for domain in ["Page", "Runtime", "Network", "Log"] {
            browser.call(&format!("{domain}.enable"), &json!({}));
        }
        browser
    }

    fn call(&mut self, method: &str, params: &Value) -> Value {
        self.calls += 1;
        let mut message = json!({"id": self.calls, "method": method, "params": params});
        if let Some(tab) = &self.tab {
            message["sessionId"] = json!(tab);
        }
        self.socket.send(Message::text(message.to_string())).expect("sent");
        loop {
            let Message::Text(text) = self.socket.read().expect("an answer") else { continue };
            let mut received: Value = serde_json::from_str(&text).expect("JSON");
            if received["id"] == json!(self.calls) {
                assert!(received.get("error").is_none(), "{method}: {received}");
                return received["result"].take();
            }
            self.events.push(received);
        }
    }

    /// Evaluates an expression in the page.
    fn ask(&mut self, expression: &str) -> Value {
        let params = json!({"expression": expression, "returnByValue": true});
        let mut answer = self.call("Runtime.evaluate", &params);
        assert!(answer.get("exceptionDetails").is_none(), "{expression}: {answer}");
        answer["result"]["value"].take()
    }

    /// Evaluates an expression until it has the expected value.
    fn wait(&mut self, expression: &str, expected: &Value) {
        until_ok(|| {
            let found = self.ask(expression);
            let why = format!("{expression} is {found}, not {expected}");
            if found == *expected { Ok(()) } else { Err(why) }
        });
    }

    fn open(&mut self, url: &str, width: u32) {
        let phone = width < 600;
        let size = json!({"width": width, "height": 800, "deviceScaleFactor": 2, "mobile": phone});
        self.call("Emulation.setDeviceMetricsOverride", &size);
        let opened = self.call("Page.navigate", &json!({"url": url}));
        assert!(opened.get("errorText").is_none(), "{opened}");
        let here = format!("location.href === '{url}' && document.readyState === 'complete'");
        self.wait(&here, &json!(true));
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // The browser may have ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

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

/// An expression for the elements that reach beyond the page's width.
const BEYOND: &str = "[...document.querySelectorAll('*')].filter(e => \
     e.getBoundingClientRect().right > document.documentElement.clientWidth + 0.5 || \
     e.scrollWidth > e.clientWidth + 1 && getComputedStyle(e).overflowX !== 'visible') \
     .map(e => e.tagName + ' ' + e.textContent.slice(0, 40))";

/// An expression for the lowest contrast of any text with its background, by WCAG 2.
const CONTRAST: &str = r"(() => {
    const light = (colour) => {
        const [r, g, b] = colour.match(/[\d.]+/g).map((part) => part / 255);
        const linear = (c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
        return 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
    };
    const behind = (e) => {
        const colour = getComputedStyle(e).backgroundColor;
        return e.parentElement && colour === 'rgba(0, 0, 0, 0)' ? behind(e.parentElement) : colour;
    };
    const texts = [...document.body.querySelectorAll('*')].filter((e) =>
        [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim()) && e.offsetParent);
    return Math.min(...texts.map((e) => {
        const pair = [light(getComputedStyle(e).color), light(behind(e))].sort((a, b) => b - a);
        return (pair[0] + 0.05) / (pair[1] + 0.05);
    }));
})()";

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
        "How to connect",
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
