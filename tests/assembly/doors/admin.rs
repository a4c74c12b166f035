//! The contracts of the page for managers: each page after a login with a link of `hark admin link`.

use hark_testkit::http::{HttpReply, HttpRequest};

use super::Answer::{self, Own};
use crate::world::{World, number};

/// Sends a form to the server whose links the commands print.
fn post(world: &World, path: &str, cookie: &str, body: &str) -> HttpReply {
    let addr = &world.writes().relay;
    let origin = format!("http://{addr}");
    let request = HttpRequest::new("POST", path).header("Origin", &origin).header("Cookie", cookie);
    request.body(body).send(addr)
}

/// Logs in with a new link, and returns the cookie.
pub(super) fn log_in(world: &World) -> String {
    let link = world.hark(&["admin", "link"]).text();
    let (_, secret) = link.trim().split_once("link=").expect("a link");
    let reply = post(world, "/admin/login", "", &format!("link={secret}"));
    assert_eq!(reply.status, 303, "{}", reply.text());
    let (_, cookie) = reply.head.split_once("set-cookie: ").expect("a cookie");
    cookie.split(';').next().unwrap_or_default().to_owned()
}

fn read(world: &World, path: &str, cookie: &str) -> HttpReply {
    HttpRequest::new("GET", path).header("Cookie", cookie).send(&world.writes().relay)
}

/// Does `work` with a session. The session is made anew if it has ended, because a person has a
/// bounded number of sessions, and other cells log in at the same time.
fn with_session(world: &World, work: impl Fn(&str) -> Option<()>) {
    let done = (0..10).find_map(|_| work(&log_in(world)));
    assert!(done.is_some(), "each session has ended before its use");
}

/// Reads a page, which must have these words.
pub(super) fn page(world: &World, path: &str, words: &str) -> Answer {
    with_session(world, |cookie| {
        let text = read(world, path, cookie).text();
        let is_logged_in = text.contains("Log out");
        assert!(!is_logged_in || text.contains(words), "{path}: {text}");
        is_logged_in.then_some(())
    });
    Own
}

fn token(page: &str) -> Option<&str> {
    page.split_once("name=\"token\" value=\"")?.1.get(..64)
}

/// Bans an address on the page, and lifts the ban.
pub(super) fn bans(world: &World) -> Answer {
    let path = "/admin/bans?ruling=ban&sort=addresses";
    // No client of a test has this address, and no other cell bans the address.
    let address = format!("2001:db8:ad::{:x}", number() + 1);
    with_session(world, |cookie| {
        let before = read(world, path, cookie).text();
        let act = |act: &str| {
            let body = format!("act={act}&subject={address}&token={}", token(&before)?);
            (post(world, path, cookie, &body).status == 303).then_some(())
        };
        act("ban")?;
        let listed = world.hark(&["list", "bans", "--of", "addresses"]).text();
        assert!(listed.contains(&address) && listed.contains("link ("), "{listed}");
        let shown = read(world, path, cookie).text();
        assert!(!shown.contains("Log out") || shown.contains(&address), "{shown}");
        act("unban")
    });
    Own
}

/// Ends a session.
pub(super) fn log_out(world: &World) -> Answer {
    with_session(world, |cookie| {
        let page = read(world, "/admin", cookie).text();
        let body = format!("token={}", token(&page)?);
        (post(world, "/admin/logout", cookie, &body).status == 303).then_some(())?;
        assert!(!read(world, "/admin", cookie).text().contains("Log out"));
        Some(())
    });
    Own
}

/// A login without a signature is refused.
pub(super) fn key(world: &World) -> Answer {
    let reply = post(world, "/admin/key", "", "login");
    assert_eq!(reply.status, 401, "{}", reply.text());
    Own
}
