//! Decides which clients and which web pages may use the REST API.
//!
//! A browser lets any web page send requests to any address that the browser's machine can reach,
//! including this API. So a request caused by a page is refused unless the operator has allowed the
//! page's origin. Such a request has one of three marks: an `Origin` or `Sec-Fetch-Site` header, a
//! host name that is not this node's (DNS rebinding), or a content type that needs no preflight.
//! Requests of programs and scripts have no such mark.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    CONTENT_TYPE, HOST, ORIGIN, VARY,
};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};

use super::RestAnswer;
use crate::Clients;
use crate::http::AnsweredClient;
use crate::roster::serving;

const SEC_FETCH_SITE: &str = "sec-fetch-site";

/// The web pages that may use the API.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WebAccess {
    /// Origins whose pages may use the API:
    /// `http://localhost:*`, `app.example`, or `*` for all. `*` stands for any text, `?` for one
    /// letter or none.
    pub allow_origin: Vec<String>,
    /// Host names of this node, in addition to `localhost` and IP addresses. `*` stands for any
    /// name.
    pub hosts: Vec<String>,
}

/// Decides which requests reach an interface.
pub(crate) struct RestGuard {
    /// The addresses whose requests are answered.
    pub(crate) clients: Clients,
    /// The web pages that may use the interface.
    pub(crate) access: WebAccess,
    /// The configuration section with the setting `rest_hosts` of the interface.
    pub(crate) section: &'static str,
    /// Content types that a body may have. A web page can send these types to another site only
    /// after a preflight request.
    pub(crate) body_types: &'static [&'static str],
}

/// The client of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RestClientAddress(pub(crate) IpAddr);

/// Passes a request to its handler, or answers with a refusal.
pub(crate) async fn guard(
    State(guard): State<Arc<RestGuard>>,
    mut request: Request,
    next: Next,
) -> Response {
    let peer = request.extensions().get::<IpAddr>().copied();
    let peer = peer.unwrap_or(Ipv4Addr::UNSPECIFIED.into());
    if guard.clients.is_proxy(peer)
        && let Some(listed) = serving()
    {
        listed.set_client(peer, guard.clients.named(request.headers()));
    }
    let Some(client) = guard.clients.client(peer, request.headers()) else {
        let words = "blocked: this node does not serve your address\n";
        return RestAnswer::words(StatusCode::FORBIDDEN, words).into_response();
    };
    request.extensions_mut().insert(RestClientAddress(client));
    let page = match guard.check(request.method(), request.uri(), request.headers()) {
        Ok(page) => page,
        Err(refused) => return refused.into_response(),
    };
    let is_preflight = *request.method() == Method::OPTIONS;
    let mut answer =
        if is_preflight { RestAnswer::ok().into_response() } else { next.run(request).await };
    if client != peer {
        answer.extensions_mut().insert(AnsweredClient(client));
    }
    if let Some(origin) = page {
        let headers = answer.headers_mut();
        if origin != "*" {
            headers.insert(VARY, HeaderValue::from_static("Origin"));
        }
        headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        let allowed = HeaderValue::from_static("Content-Type");
        headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, allowed);
        if is_preflight {
            let methods = HeaderValue::from_static("GET, POST, DELETE, OPTIONS");
            headers.insert(ACCESS_CONTROL_ALLOW_METHODS, methods);
        }
    }
    answer
}

impl RestGuard {
    /// Checks whether a request may pass. Returns the origin whose pages may read the answer.
    fn check(
        &self,
        method: &Method,
        uri: &Uri,
        headers: &HeaderMap,
    ) -> Result<Option<HeaderValue>, RestAnswer> {
        let forbidden = |words: &str| RestAnswer::words(StatusCode::FORBIDDEN, words);
        let access = &self.access;
        let named = headers.get_all(HOST).iter().map(|host| host.to_str().unwrap_or_default());
        if !named.chain(uri.authority().map(Authority::as_str)).all(|host| access.is_own(host)) {
            return Err(forbidden(&format!(
                "Host not allowed: use the address of this node, or set [{}] rest_hosts to the \
                 names under which it is reached\n",
                self.section
            )));
        }
        let page = access.page(headers)?;
        if page.is_none() && access.is_of_page(headers) {
            return Err(forbidden(NOT_ALLOWED));
        }
        if [Method::POST, Method::DELETE].contains(method) {
            let expected = |value: &HeaderValue| {
                let value = value.to_str().unwrap_or_default();
                let essence = value.split(';').next().unwrap_or_default().trim();
                self.body_types.iter().any(|known| essence.eq_ignore_ascii_case(known))
            };
            // Browsers always send a content type with a body.
            if !headers.get_all(CONTENT_TYPE).iter().all(expected) {
                let types = self.body_types.join(" or ");
                let words = format!("Wrong Content-Type, expected {types}\n");
                return Err(RestAnswer::refused(words));
            }
        }
        Ok(page)
    }
}

impl WebAccess {
    /// Returns the origin that a request names, or `*` if every origin is allowed. `None` if the
    /// request names no origin. Fails if the origin is not allowed.
    fn page(&self, headers: &HeaderMap) -> Result<Option<HeaderValue>, RestAnswer> {
        let mut origins = headers.get_all(ORIGIN).iter();
        let Some(origin) = origins.next() else { return Ok(None) };
        if origins.next().is_some() {
            return Err(RestAnswer::refused("Only a single Origin header must be specified\n"));
        }
        if self.allows_all() {
            return Ok(Some(HeaderValue::from_static("*")));
        }
        let text = origin.to_str().unwrap_or_default();
        if self.allow_origin.iter().any(|pattern| is_origin(pattern, text)) {
            return Ok(Some(origin.clone()));
        }
        Err(RestAnswer::words(StatusCode::FORBIDDEN, NOT_ALLOWED))
    }

    fn allows_all(&self) -> bool {
        self.allow_origin.iter().any(|pattern| pattern == "*")
    }

    /// Whether a page of another site has caused a request without an `Origin` header. Images and
    /// links cause such requests. Browsers send `Sec-Fetch-Site` only over TLS and to addresses of
    /// their own machine.
    fn is_of_page(&self, headers: &HeaderMap) -> bool {
        let own = |site: &HeaderValue| site == "none" || site == "same-origin";
        !self.allows_all() && !headers.get_all(SEC_FETCH_SITE).iter().all(own)
    }

    /// Whether `host`, with or without a port, belongs to this node. An IP address always does:
    /// unlike a name, an address cannot be redirected to this node by somebody else.
    pub(crate) fn is_own(&self, host: &str) -> bool {
        let name = without_port(host).trim_end_matches('.');
        let of_v6 = name.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
        let is_address = match of_v6 {
            Some(of_v6) => of_v6.parse::<Ipv6Addr>().is_ok(),
            None => name.parse::<Ipv4Addr>().is_ok(),
        };
        let named = |known: &String| known == "*" || known.eq_ignore_ascii_case(name);
        is_address || name.eq_ignore_ascii_case("localhost") || self.hosts.iter().any(named)
    }
}

/// The text of the answer to a page of another origin.
const NOT_ALLOWED: &str = "Origin not allowed";

/// Returns a host without its port.
pub(crate) fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    }
}

/// Whether an origin matches a pattern. A pattern without a scheme matches both schemes.
fn is_origin(pattern: &str, origin: &str) -> bool {
    let (pattern, origin) = (pattern.to_ascii_lowercase(), origin.to_ascii_lowercase());
    if pattern.contains("://") {
        return fits(&pattern, &origin);
    }
    let rest = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
    rest.is_some_and(|rest| fits(&pattern, rest))
}

/// Whether all of `text` matches a pattern. The number of steps is at most the product of the two
/// lengths.
fn fits(pattern: &str, text: &str) -> bool {
    let pattern = pattern.as_bytes();
    // At index n: whether the text so far matches the first n letters of the pattern.
    let mut fitted = vec![false; pattern.len() + 1];
    fitted[0] = true;
    let skip = |fitted: &mut [bool]| {
        for (at, letter) in pattern.iter().enumerate() {
            fitted[at + 1] |= fitted[at] && b"*?".contains(letter);
        }
    };
    skip(&mut fitted);
    for letter in text.bytes() {
        let mut next = vec![false; pattern.len() + 1];
        for (at, wanted) in pattern.iter().enumerate() {
            next[at] |= fitted[at] && *wanted == b'*';
            next[at + 1] |= fitted[at] && (*wanted == b'?' || *wanted == letter);
        }
        skip(&mut next);
        fitted = next;
    }
    fitted[pattern.len()]
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderName;

    use super::*;

    fn access(allow_origin: &[&str], hosts: &[&str]) -> RestGuard {
        let own = |list: &[&str]| list.iter().map(|&text| text.into()).collect();
        RestGuard {
            clients: Clients::default(),
            access: WebAccess { allow_origin: own(allow_origin), hosts: own(hosts) },
            section: "waku",
            body_types: &["application/json"],
        }
    }

    /// The status for a request with these headers, and the origin that may read the answer.
    fn passes(access: &RestGuard, method: &Method, said: &[(&str, &str)]) -> (u16, Option<String>) {
        let mut headers = HeaderMap::new();
        for (name, value) in said {
            let name: HeaderName = name.parse().unwrap();
            headers.append(name, value.parse().unwrap());
        }
        match access.check(method, &Uri::from_static("/health"), &headers) {
            Ok(page) => (200, page.map(|origin| origin.to_str().unwrap().to_owned())),
            Err(answer) => (answer.status.as_u16(), None),
        }
    }

    /// The cases of nwaku's own tests.
    #[test]
    fn origins_are_allowed_as_nwaku_allows_them() {
        let listed = access(
            &["test.net:1234", "https://localhost:*", "http://127.0.0.1:?8", "?waku*.net:*80*"],
            &[],
        );
        for origin in [
            "http://test.net:1234",
            "https://test.net:1234",
            "https://localhost:8080",
            "https://localhost:80",
            "http://127.0.0.1:78",
            "http://wakuTHE.net:8078",
            "http://nwaku.main.net:1980",
            "http://nwaku.main.net:80",
        ] {
            let passed = passes(&listed, &Method::GET, &[("origin", origin)]);
            assert_eq!(passed, (200, Some(origin.into())));
            let passed = passes(&access(&["*"], &[]), &Method::GET, &[("origin", origin)]);
            assert_eq!(passed, (200, Some("*".into())), "{origin}");
        }
        for origin in [
            "http://test.net:12334",
            "http://test.net:12345",
            "xhttp://test.net:1234",
            "https://xtest.net:1234",
            "http://localhost:8080",
            "https://127.0.0.1:78",
            "http://127.0.0.1:89",
            "http://the.waku.net:8078",
            "http://nwaku.main.net:1900",
            "null",
            "",
        ] {
            let passed = passes(&listed, &Method::GET, &[("origin", origin)]);
            assert_eq!(passed, (403, None), "{origin}");
        }
        assert_eq!(passes(&listed, &Method::GET, &[]), (200, None));
        let two = [("origin", "http://test.net:1234"), ("origin", "http://test.net:1234")];
        assert_eq!(passes(&listed, &Method::GET, &two).0, 400);
    }

    #[test]
    fn a_page_that_is_not_allowed_is_known_by_what_its_browser_says() {
        let (none, all) = (access(&[], &[]), access(&["*"], &[]));
        for (said, of_none, of_all) in [
            (("origin", "null"), 403, 200),
            (("origin", "http://127.0.0.1:8645"), 403, 200),
            (("sec-fetch-site", "cross-site"), 403, 200),
            (("sec-fetch-site", "same-site"), 403, 200),
            (("sec-fetch-site", "none"), 200, 200),
            (("accept", "*/*"), 200, 200),
        ] {
            assert_eq!(passes(&none, &Method::GET, &[said]).0, of_none, "{said:?}");
            assert_eq!(passes(&all, &Method::GET, &[said]).0, of_all, "{said:?}");
        }
    }

    #[test]
    fn a_name_that_is_not_its_own_is_refused() {
        let access = access(&[], &["Node.example", "hark"]);
        for (host, status) in [
            ("127.0.0.1:8645", 200),
            ("192.168.1.2", 200),
            ("[::1]:8645", 200),
            ("[2001:db8::1]", 200),
            ("localhost:8645", 200),
            ("LOCALHOST", 200),
            ("node.EXAMPLE:80", 200),
            ("node.example.", 200),
            ("hark:8645", 200),
            ("evil.example:8645", 403),
            ("localhost.evil.example", 403),
            ("127.0.0.1.evil.example", 403),
            ("[evil]:80", 403),
            ("evil.example@127.0.0.1", 403),
            ("", 403),
        ] {
            assert_eq!(passes(&access, &Method::GET, &[("host", host)]).0, status, "{host}");
        }
        let two = [("host", "127.0.0.1"), ("host", "evil.example")];
        assert_eq!(passes(&access, &Method::GET, &two).0, 403);
        let any = self::access(&[], &["*"]);
        assert_eq!(passes(&any, &Method::GET, &[("host", "evil.example")]).0, 200);
        let uri = Uri::from_static("http://evil.example/health");
        assert!(access.check(&Method::GET, &uri, &HeaderMap::new()).is_err());
    }

    #[test]
    fn a_body_is_json_or_of_no_type() {
        let access = access(&[], &[]);
        for (of, status) in [
            ("application/json", 200),
            ("Application/JSON; charset=utf-8", 200),
            ("text/plain", 400),
            ("application/x-www-form-urlencoded", 400),
            ("multipart/form-data; boundary=application/json", 400),
        ] {
            for method in [Method::POST, Method::DELETE] {
                assert_eq!(passes(&access, &method, &[("content-type", of)]).0, status, "{of}");
            }
            assert_eq!(passes(&access, &Method::GET, &[("content-type", of)]).0, 200, "{of}");
        }
        assert_eq!(passes(&access, &Method::POST, &[]).0, 200);
    }
}
