//! Checks whether the names in a `Host` header belong to this server.
//!
//! A stranger's web page can make its own name resolve to an address of this machine or network
//! (DNS rebinding). The browser then lets the page read the answers from that address. The `Host`
//! header still contains the stranger's name.

use axum::http::HeaderMap;
use axum::http::header::HOST;

use crate::rest::{WebAccess, without_port};

/// Endings of names for private networks, which nobody can register (RFC 6762, RFC 8375, ICANN).
const PRIVATE_ENDINGS: [&str; 3] = [".local", ".internal", ".home.arpa"];

/// Whether each `Host` of a request is an address, `localhost`, this machine's name, one of
/// `names`, or a name that nobody can register.
pub fn are_own(headers: &HeaderMap, mut names: Vec<String>) -> bool {
    let machine = rustix::system::uname().nodename().to_string_lossy().into_owned();
    names.push(machine);
    // `*` would match every name.
    names.retain(|name| name != "*");
    let access = WebAccess { allow_origin: Vec::new(), hosts: names };
    let is_own = |host: &str| access.is_own(host) || is_private(host);
    headers.get_all(HOST).iter().all(|host| host.to_str().is_ok_and(is_own))
}

fn is_private(host: &str) -> bool {
    let name = without_port(host).trim_end_matches('.').to_ascii_lowercase();
    let is_name = !name.is_empty()
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-_".contains(&byte));
    is_name && (!name.contains('.') || PRIVATE_ENDINGS.iter().any(|end| name.ends_with(end)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_a_stranger_may_have_is_not_ours() {
        let machine = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let named = |hosts: &[&str]| {
            let mut headers = HeaderMap::new();
            for host in hosts {
                headers.append(HOST, host.parse().unwrap());
            }
            are_own(&headers, vec!["Relay.example".into(), "*".into()])
        };
        for host in [
            "127.0.0.1:7777",
            "[::1]:7777",
            "10.0.0.2",
            "localhost:1",
            "relay.EXAMPLE.:7777",
            &machine,
            "hark:7777",
            "hark.monitoring.svc.cluster.local",
            "prod-1.internal",
        ] {
            assert!(named(&[host]), "{host}");
        }
        for host in [
            "evil.example:7777",
            "relay.example.evil.example",
            "local.evil.example",
            "evil.example/.local",
            "me@evil.example:x.local",
            "",
        ] {
            assert!(!named(&[host]), "{host}");
            assert!(!named(&["localhost", host]), "{host}");
        }
        assert!(named(&[]), "HTTP/1.0 needs none, and no browser speaks it");
    }
}
