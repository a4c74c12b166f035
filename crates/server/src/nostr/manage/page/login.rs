//! Logging in: by a link that `hark admin link` has made, or by a signature of a manager's key.

use std::time::Instant;

use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;

use super::form::query;
use super::request::AdminRequest;
use super::sessions::{AdminPerson, AdminSessions, SessionFault};
use super::view::{document, relay_name};
use crate::door::AdminLinkFault;
use crate::nostr::Relay;
use crate::nostr::html::{Html, html};
use crate::nostr::manage::door;
use crate::nostr::manage::fault::ManageFault;
use crate::nostr::manage::http_auth::{HttpAuthRequest, HttpSignature};

/// The script that asks the browser's extension for a signature.
pub(super) const SCRIPT: &str = include_str!("login.js");
/// SHA-256 of the body of a login with a key, which is always `login`, because a script in a page
/// without TLS cannot compute a hash.
const KEY_BODY_HASH: &str = "428821350e9691491f616b754cd8315fb86d797ab35d843479e732ef90665324";

/// Makes a link for the person who has run a command. Returns its path below the relay's URL, with
/// the query.
pub(crate) fn link_path(relay: &Relay, maker: &str) -> Result<String, AdminLinkFault> {
    if !relay.management.has_page() {
        return Err(AdminLinkFault::Off);
    }
    let made = relay.management.sessions.make_link(maker, Instant::now());
    let secret = made.map_err(|_| AdminLinkFault::Random)?;
    tracing::info!(maker, "a link to the page /admin was made");
    Ok(format!("/admin/login{}", query(&[("link", &secret)])))
}

/// The page for people who have not logged in. `fault` is the reason why a login failed.
pub(super) fn page(relay: &Relay, prefix: &str, fault: Option<&str>) -> Html {
    let fault =
        fault.map(|text| html!("<p class=\"notice failure\" role=\"status\">{}</p>\n", text));
    let key = (!relay.management.managers.load().is_empty()).then(|| {
        html!(
            "<section>\n<h2>With your key</h2>\n\
             <p>A browser extension with your key (NIP-07) signs the login. The key must be a manager of \
             this relay.</p>\n\
             <noscript><p>This login needs scripts.</p></noscript>\n\
             <p><button id=\"key-login\" class=\"main\" hidden data-action=\"{}/admin/key\" \
             data-next=\"{}/admin\" data-payload=\"{}\">Log in with a key</button></p>\n\
             <p id=\"key-fault\" class=\"notice failure\" role=\"alert\" hidden></p>\n</section>\n",
            prefix,
            prefix,
            KEY_BODY_HASH
        )
    });
    let body = html!(
        "<main class=\"login\">\n<p class=\"relay\"><a href=\"{prefix}/\">{name}</a></p>\n<h1>Log in</h1>\n\
         {fault}{key}<section>\n<h2>With a link</h2>\n<p>On the server, the command \
         <code>hark admin link</code> prints a link that logs in once.</p>\n</section>\n</main>\n\
         <script src=\"{prefix}/admin/login.js\" defer></script>\n",
        prefix = prefix,
        name = relay_name(relay),
        fault = fault,
        key = key,
    );
    document(relay, prefix, "Log in", &body)
}

/// The page of a link. Only its button uses the link, because programs that preview links open each
/// link that they find.
pub(super) fn link_page(relay: &Relay, prefix: &str, secret: &str) -> Html {
    let body = html!(
        "<main class=\"login\">\n<p class=\"relay\"><a href=\"{prefix}/\">{name}</a></p>\n<h1>Log in</h1>\n\
         <p>This link logs in once, and may change everything on this page.</p>\n\
         <form method=\"post\" action=\"{prefix}/admin/login\">\
         <input type=\"hidden\" name=\"link\" value=\"{secret}\">\
         <button class=\"main\" autofocus>Log in</button></form>\n</main>\n",
        prefix = prefix,
        name = relay_name(relay),
        secret = secret,
    );
    document(relay, prefix, "Log in", &body)
}

/// Uses a link. Returns the secret for the cookie.
pub(super) fn use_link(sessions: &AdminSessions, secret: &str) -> Result<String, SessionFault> {
    let cookie = sessions.use_link(secret, Instant::now())?;
    tracing::info!("somebody has logged in to the page /admin with a link");
    Ok(cookie)
}

/// Checks the signature of a login with a key, before its body is read.
pub(super) fn key_signature(
    asked: &AdminRequest<'_>,
    headers: &HeaderMap,
) -> Result<HttpSignature, ManageFault> {
    let relay = asked.relay;
    let identity = relay.identity.current();
    let is_own_url = |url: &str| {
        let base = url.trim().strip_suffix("/admin/key");
        base.is_some_and(|base| door::is_own_url(relay, asked.client.local, base, None))
    };
    let request = HttpAuthRequest {
        header: headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok()),
        method: "POST",
        is_own_url: &is_own_url,
        own_url: identity.info.url.as_deref(),
        now_s: relay.shelf.clock().now_s(),
    };
    let signature = request.signature()?;
    door::permissions(relay, &signature.key)?;
    relay.management.seen.check(&signature)?;
    Ok(signature)
}

/// Begins the session of a signature. Returns the secret for the cookie.
pub(super) fn use_key(
    relay: &Relay,
    signature: &HttpSignature,
    body: &[u8],
) -> Result<String, ManageFault> {
    signature.check_body(body)?;
    relay.management.seen.record(signature, relay.shelf.clock().now_s())?;
    door::permissions(relay, &signature.key)?;
    let person = AdminPerson::Manager(signature.key);
    let key = person.name();
    let cookie = relay.management.sessions.begin(person, Instant::now())?;
    tracing::info!(key, "a manager has logged in to the page /admin");
    Ok(cookie)
}

#[cfg(test)]
mod tests {
    use hark_codec::crypto::sha256;
    use hark_codec::hex;

    use super::*;

    #[test]
    fn the_hash_in_the_page_is_that_of_the_body() {
        assert_eq!(hex::encode_32(&sha256(b"login")), KEY_BODY_HASH.as_bytes());
        assert!(SCRIPT.contains("body: \"login\""), "{SCRIPT}");
    }
}
