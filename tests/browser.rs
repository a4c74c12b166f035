//! A real browser for the tests of pages: Chromium, driven over its DevTools protocol.

use std::io::{BufRead as _, BufReader};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use hark_testkit::folder::Folder;
use hark_testkit::wait::{PATIENCE, until_ok};
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::stream::MaybeTlsStream;
use tokio_tungstenite::tungstenite::{Message, WebSocket, connect};

/// A browser with one tab. The browser ends with the test.
pub(crate) struct Browser {
    process: Child,
    /// Removed after the browser has ended.
    _profile: Folder,
    socket: WebSocket<MaybeTlsStream<TcpStream>>,
    tab: Option<String>,
    calls: u64,
    /// Events of the tab that are not answers to commands.
    pub(crate) events: Vec<Value>,
}

impl Browser {
    pub(crate) fn start(test: &str) -> Self {
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

    pub(crate) fn call(&mut self, method: &str, params: &Value) -> Value {
        self.answer(method, params).unwrap_or_else(|error| panic!("{method}: {error}"))
    }

    /// The result of a command, or the browser's error.
    fn answer(&mut self, method: &str, params: &Value) -> Result<Value, Value> {
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
                let error = received["error"].take();
                return if error.is_null() { Ok(received["result"].take()) } else { Err(error) };
            }
            self.events.push(received);
        }
    }

    /// Evaluates an expression in the page.
    pub(crate) fn ask(&mut self, expression: &str) -> Value {
        self.value(expression).unwrap_or_else(|error| panic!("{expression}: {error}"))
    }

    /// The value of an expression, or the error of the browser or of the expression.
    fn value(&mut self, expression: &str) -> Result<Value, Value> {
        let params = json!({"expression": expression, "returnByValue": true, "awaitPromise": true});
        let mut answer = self.answer("Runtime.evaluate", &params)?;
        let exception = answer["exceptionDetails"].take();
        if exception.is_null() { Ok(answer["result"]["value"].take()) } else { Err(exception) }
    }

    /// Evaluates an expression until it has the expected value. The browser refuses an expression
    /// that is evaluated while another page replaces its page.
    pub(crate) fn wait(&mut self, expression: &str, expected: &Value) {
        until_ok(|| {
            let found = self.value(expression).map_err(|error| format!("{expression}: {error}"))?;
            let why = format!("{expression} is {found}, not {expected}");
            if found == *expected { Ok(()) } else { Err(why) }
        });
    }

    /// Sets the width of the window.
    pub(crate) fn resize(&mut self, width: u32) {
        let phone = width < 600;
        let size = json!({"width": width, "height": 800, "deviceScaleFactor": 2, "mobile": phone});
        self.call("Emulation.setDeviceMetricsOverride", &size);
    }

    pub(crate) fn open(&mut self, url: &str, width: u32) {
        self.resize(width);
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

/// An expression for the elements that reach beyond the page's width.
pub(crate) const BEYOND: &str = "[...document.querySelectorAll('*')].filter(e => \
     e.getBoundingClientRect().right > document.documentElement.clientWidth + 0.5 || \
     e.scrollWidth > e.clientWidth + 1 && getComputedStyle(e).overflowX !== 'visible') \
     .map(e => e.tagName + ' ' + e.textContent.slice(0, 40))";

/// An expression for the lowest contrast of any text with its background, by WCAG 2.
pub(crate) const CONTRAST: &str = r"(() => {
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
