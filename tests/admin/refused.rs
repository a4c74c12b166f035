//! Requests to the page that must be refused, and the headers of its answers.

use hark_testkit::clock::now_s;
use hark_testkit::http::{HttpReply, HttpRequest, get};
use hark_testkit::nostr::event_json;
use serde_json::json;

use super::{key, link, npub_of, post, settings, wait_for_count};
use crate::served::Relay;

/// The secret in a link.
fn secret(link: &str) -> &str {
    link.split_once("link=").expect("a secret").1
}

/// The value of a header of an answer, in lower case.
fn header<'a>(reply: &'a HttpReply, name: &str) -> &'a str {
    let line = reply.head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
    line.unwrap_or_else(|| panic!("no {name}: {}", reply.head))
}

/// Logs in, and returns the cookie.
fn log_in(relay: &Relay) -> String {
    let reply = post(relay, "/admin/login", "", &format!("link={}", secret(&link(relay))));
    assert_eq!(reply.status, 303, "{}", reply.text());
    header(&reply, "set-cookie").split(';').next().expect("a cookie").to_owned()
}

/// The secret of the forms on a page.
fn token(relay: &Relay, path: &str, cookie: &str) -> String {
    let page = HttpRequest::new("GET", path).header("Cookie", cookie).send(relay.address()).ok();
    let (_, rest) = page.split_once("name=\"token\" value=\"").expect("a form");
    rest[..64].to_owned()
}

#[test]
fn only_a_session_with_its_own_form_changes_anything() {
    let relay = Relay::start("admin-refused", &settings());
    let (cookie, other) = (log_in(&relay), log_in(&relay));
    let (own, foreign) =
        (token(&relay, "/admin/bans", &cookie), token(&relay, "/admin/bans", &other));
    let ban = |token: &str| format!("act=ban&subject={}&token={token}", key(5));
    let origin = format!("http://{}", relay.address());
    let send = |cookie: &str, origins: &[&str], body: &str| {
        let mut request = HttpRequest::new("POST", "/admin/bans").header("Cookie", cookie);
        for origin in origins {
            request = request.header("Origin", origin);
        }
        request.body(body).send(relay.address())
    };
    let wrong_cookie = format!("hark-session={}", "0".repeat(64));
    for (cookie, origins, token, words) in [
        (cookie.as_str(), &[origin.as_str()][..], foreign.as_str(), "another session"),
        (&cookie, &[&origin], "", "another session"),
        (&wrong_cookie, &[&origin], &own, "nobody is logged in"),
        ("", &[&origin], &own, "nobody is logged in"),
        (&cookie, &[], &own, "Origin header"),
        (&cookie, &["null"], &own, "Origin header"),
        (&cookie, &["http://evil.example"], &own, "Origin header"),
        (&cookie, &[&origin, &origin], &own, "Origin header"),
        (&cookie, &["file://"], &own, "Origin header"),
    ] {
        let reply = send(cookie, origins, &ban(token));
        assert_eq!(reply.status, 403, "{words}: {}", reply.text());
        assert!(reply.text().contains(words), "{words}: {}", reply.text());
    }
    let list = relay.place.command(&["list"]).output().expect("the binary runs");
    assert_eq!(String::from_utf8_lossy(&list.stdout), "0 entries\n");
    // The right request is carried out, and returns to the page.
    let reply = send(&cookie, &[&origin], &ban(&own));
    assert_eq!((reply.status, header(&reply, "location")), (303, "/admin/bans"));
    let list = relay.place.command(&["list"]).output().expect("the binary runs");
    assert!(String::from_utf8_lossy(&list.stdout).contains(&npub_of(5)));
    // Wrong fields change nothing, and the page says why.
    for (fields, words) in [
        ("act=ban&subject=nobody", "is no subject"),
        ("act=ban&subject=kind:1&for=soon", "the form is not complete"),
        ("act=unban&subject=kind:-1", "is no kind"),
        ("act=close&whom=somebody", "is no address"),
        ("act=signevent", "the form is not complete"),
        ("act=changerelayname", "the form is not complete"),
        ("act=createrole&role=", "the id of a role"),
        ("act=assignrole&role=none&key=npub1", "a public key"),
        ("", "the form is not complete"),
    ] {
        let reply = post(&relay, "/admin/bans?sort=key", &cookie, &format!("{fields}&token={own}"));
        assert_eq!((reply.status, header(&reply, "location")), (303, "/admin/bans?sort=key"));
        let page = HttpRequest::new("GET", "/admin/bans").header("Cookie", &cookie);
        let page = page.send(relay.address()).ok();
        assert!(page.contains("notice failure") && page.contains(words), "{words}: {page}");
    }
    // A body that is too long.
    let long = "x".repeat(70_000);
    let request = HttpRequest::new("POST", "/admin/bans").header("Cookie", &cookie);
    let request = request.header("Origin", &origin).body(&long);
    assert_eq!(request.send(relay.address()).status, 413);
    // After the logout, the cookie is worth nothing.
    let reply = post(&relay, "/admin/logout", &cookie, &format!("token={own}"));
    assert!(header(&reply, "set-cookie").contains("max-age=0"));
    assert_eq!(send(&cookie, &[&origin], &ban(&own)).status, 403);
    // After a restart, no session and no link is known.
    let old = link(&relay);
    let Relay { server, place } = relay;
    server.terminate();
    let relay = Relay { server: place.start(), place };
    let page = HttpRequest::new("GET", "/admin/bans").header("Cookie", &other);
    assert_eq!(page.send(relay.address()).status, 403);
    assert_eq!(post(&relay, "/admin/login", "", &format!("link={}", secret(&old))).status, 403);
}

#[test]
fn a_link_logs_in_once_and_its_cookie_is_only_for_the_page() {
    let relay = Relay::start("admin-cookie", &settings());
    let made = link(&relay);
    assert!(made.starts_with(&format!("http://{}/admin/login?link=", relay.address())), "{made}");
    // A program that previews the link does not use the link.
    let path = made.split_once(relay.address()).expect("a path").1;
    for _ in 0..2 {
        let page = get(relay.address(), path).ok();
        assert!(page.contains("This link logs in once"), "{page}");
    }
    let body = format!("link={}", secret(&made));
    let foreign = HttpRequest::new("POST", "/admin/login").header("Origin", "http://evil.example");
    assert_eq!(foreign.body(&body).send(relay.address()).status, 403);
    let reply = post(&relay, "/admin/login", "", &body);
    let cookie = header(&reply, "set-cookie");
    for part in ["; path=/admin;", "; httponly", "; samesite=strict", "max-age=43200"] {
        assert!(cookie.contains(part), "{part}: {cookie}");
    }
    assert!(!cookie.contains("secure"), "{cookie}");
    let again = post(&relay, "/admin/login", "", &body);
    assert_eq!(again.status, 403);
    assert!(again.text().contains("used before"), "{}", again.text());
    for wrong in ["link=", "link=0", "", "link=%00%ff"] {
        assert_eq!(post(&relay, "/admin/login", "", wrong).status, 403, "{wrong}");
    }
    // Behind a proxy with TLS, the cookie is for TLS alone.
    let body = format!("link={}", secret(&link(&relay)));
    let secure = HttpRequest::new("POST", "/admin/login").header("X-Forwarded-Proto", "https");
    let origin = format!("https://{}", relay.address());
    let reply = secure.header("Origin", &origin).body(&body).send(relay.address());
    assert!(header(&reply, "set-cookie").contains("; secure"), "{}", reply.head);
    // The headers of each page.
    for path in ["/admin", "/admin/login", "/admin/clients", "/admin/none"] {
        let reply = get(relay.address(), path);
        let policy = header(&reply, "content-security-policy");
        assert!(
            !policy.contains("unsafe") && policy.contains("frame-ancestors 'none'"),
            "{policy}"
        );
        assert_eq!(header(&reply, "cache-control"), "no-store");
        assert_eq!(header(&reply, "referrer-policy"), "same-origin");
    }
    for (method, path, status) in [
        ("PUT", "/admin", 405),
        ("OPTIONS", "/admin/key", 405),
        ("DELETE", "/admin/bans", 405),
        ("GET", "/admin/key", 405),
        ("GET", "/admin/none", 404),
        ("GET", "/administer", 404),
        ("GET", "/admin/members", 403),
        ("HEAD", "/admin", 200),
    ] {
        let reply = HttpRequest::new(method, path).send(relay.address());
        assert_eq!(reply.status, status, "{method} {path}");
    }
}

#[test]
fn a_role_does_only_what_its_methods_allow() {
    let relay = Relay::start("admin-role", &settings());
    let login = |secret: u8, url: &str, body: &str| {
        let payload = hark_codec::crypto::sha256(body.as_bytes());
        let payload =
            String::from_utf8(hark_codec::hex::encode_32(&payload).to_vec()).expect("digits");
        let tags: [&[&str]; 3] = [&["u", url], &["method", "POST"], &["payload", &payload]];
        let event = event_json(secret, now_s(), 27_235, &tags, "");
        let header = format!("Nostr {}", base64_simd::STANDARD.encode_to_string(event));
        let origin = format!("http://{}", relay.address());
        let request = HttpRequest::new("POST", "/admin/key").header("Authorization", &header);
        let request = request.header("Origin", &origin).body(body);
        (request.send(relay.address()), request.send(relay.address()))
    };
    let url = format!("http://{}/admin/key", relay.address());
    let (first, again) = login(2, &url, "login");
    assert_eq!((first.status, again.status), (200, 401), "{}", first.text());
    assert!(again.text().contains("used before"), "{}", again.text());
    // A signature for the management API, or for another relay, logs nobody in.
    let root = format!("http://{}/", relay.address());
    for (secret, url, status) in
        [(2, root.as_str(), 401), (2, "http://evil.example/admin/key", 401), (9, url.as_str(), 403)]
    {
        assert_eq!(login(secret, url, "login").0.status, status, "{secret} {url}");
    }
    let cookie = header(&first, "set-cookie").split(';').next().expect("a cookie").to_owned();
    let token = token(&relay, "/admin", &cookie);
    let act = |path: &str, fields: &str| {
        let reply = post(&relay, path, &cookie, &format!("{fields}&token={token}"));
        assert_eq!(reply.status, 303, "{}", reply.text());
        let page = HttpRequest::new("GET", "/admin/reports").header("Cookie", &cookie);
        page.send(relay.address()).ok()
    };
    let (id, event) = ("ab".repeat(32), json!({"ids": ["ab".repeat(32)]}));
    for fields in [
        format!("act=ban&subject={}", key(5)),
        "act=ban&subject=192.0.2.7".into(),
        "act=ban&subject=word:x".into(),
        "act=unban&subject=kind:1".into(),
        "act=close&whom=1".into(),
        "act=createrole&role=king".into(),
        format!("act=assignrole&role=helper&key={}", key(5)),
        format!("act=allow&subject=id:{id}"),
    ] {
        for path in ["/admin/bans", "/admin/roles", "/admin/clients"] {
            assert!(act(path, &fields).contains("notice failure"), "{fields}");
        }
    }
    let page = act("/admin/reports", &format!("act=ban&subject=id:{id}"));
    assert!(page.contains("is banned.") && !page.contains("notice failure"), "{page}");
    wait_for_count(&relay, &event, 0);
    let log = relay.place.command(&["log"]).output().expect("the binary runs");
    let log = String::from_utf8(log.stdout).expect("text");
    assert!(log.lines().count() == 1 && log.contains(&npub_of(2)), "{log}");
    // A key that is no manager any longer is logged out at once.
    let changed = settings().replace(&key(2), &key(3));
    relay.place.folder.file(relay.place.settings, changed);
    relay.place.command(&["reload"]).output().expect("the binary runs");
    let page = HttpRequest::new("GET", "/admin/reports").header("Cookie", &cookie);
    assert_eq!(page.send(relay.address()).status, 403);
}

#[test]
fn the_page_is_below_the_path_of_the_relay_and_can_be_disabled() {
    let text = settings().replace("[info]", "[info]\nurl = \"wss://relay.example/chat\"");
    let relay = Relay::start("admin-path", &text);
    let made = link(&relay);
    assert!(made.starts_with("https://relay.example/chat/admin/login?link="), "{made}");
    let body = format!("link={}", secret(&made));
    let request = HttpRequest::new("POST", "/chat/admin/login").host("relay.example");
    let request = request.header("Origin", "https://relay.example").body(&body);
    let reply = request.send(relay.address());
    assert_eq!((reply.status, header(&reply, "location")), (303, "/chat/admin"));
    let cookie = header(&reply, "set-cookie").to_owned();
    assert!(cookie.contains("path=/chat/admin;") && cookie.contains("; secure"), "{cookie}");
    // A proxy may keep the path, or remove the path and change the host.
    let cookie = cookie.split(';').next().expect("a cookie");
    for path in ["/chat/admin/bans", "/admin/bans"] {
        let page =
            HttpRequest::new("GET", path).header("Cookie", cookie).send(relay.address()).ok();
        assert!(page.contains("action=\"/chat/admin/bans\""), "{path}: {page}");
        assert!(page.contains("href=\"/chat/page.css\""), "{path}: {page}");
    }
    for path in ["/chat/page.css", "/page.css", "/chat/page.js", "/chat/counts", "/chat", "/"] {
        assert_eq!(get(relay.address(), path).status, 200, "{path}");
    }
    let token = token(&relay, "/admin/bans", cookie);
    let body = format!("act=ban&subject=kind:7&token={token}");
    let request = HttpRequest::new("POST", "/admin/bans").header("Cookie", cookie).body(&body);
    assert_eq!(request.header("Origin", "https://relay.example").send(relay.address()).status, 303);
    // Without the page, nothing is left.
    relay
        .place
        .folder
        .file(relay.place.settings, text.replace("[manage]", "[manage]\npage = false"));
    relay.place.command(&["reload"]).output().expect("the binary runs");
    for path in ["/chat/admin", "/admin", "/admin/login.js"] {
        let reply = HttpRequest::new("GET", path).header("Cookie", cookie).send(relay.address());
        assert_eq!(reply.status, 404, "{path}");
    }
    assert_eq!(post(&relay, "/admin/login", "", "link=0").status, 405);
    let made = relay.place.command(&["admin", "link"]).output().expect("the binary runs");
    let fault = String::from_utf8_lossy(&made.stderr).into_owned();
    assert!(made.status.code() == Some(1) && fault.contains("[manage] page"), "{fault}");
    assert!(!get(relay.address(), "/").ok().contains("/admin"));
}
