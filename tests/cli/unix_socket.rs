//! A server at a Unix socket.

use std::path::Path;

use hark_testkit::folder::Folder;
use hark_testkit::server::Server;

use super::support::{Place, command};

/// Starts a server at a Unix socket and at a port.
fn start(place: &Place, address: &str) -> Server {
    place.serve_with(&["--listen", address])
}

#[test]
fn a_unix_socket_is_answered_replaced_after_a_kill_and_removed_at_the_end() {
    let (place, folder) = (Place::new("unix"), Folder::new("cli-unix"));
    let path = folder.join("relay.sock");
    let address = format!("unix:{}", path.display());
    let mut server = start(&place, &address);
    let log = server.wait_for_log("count as one client");
    assert!(log.contains(&address) && log.contains("server.trusted_proxies"), "{log}");
    let healthz = |at: &str| command(&["healthz", "--at", at]).run_with(b"");
    let is_healthy = |at: &str| healthz(at).text().starts_with("ok\n");
    assert!(is_healthy(&address));
    // The address comes from the configuration of the server.
    let text = format!("[server]\nlisten = \"{address}\"\ntrusted_proxies = [\"127.0.0.1\"]\n");
    let config = place.file("hark.toml", text.as_bytes());
    assert!(place.hark(&["healthz", "--config", &config]).text().starts_with("ok\n"));

    // Another server does not take the socket away.
    let other = Place::new("unix-other");
    let refused = other.hark(&["serve", "--listen", &address]).refused();
    let said = format!("cannot listen on {address}: another process listens on this socket");
    assert!(refused.contains(&said), "{refused}");
    assert!(is_healthy(&address));

    server.kill();
    assert!(path.exists() && !healthz(&address).stderr.is_empty());
    let server = start(&place, &address);
    assert!(is_healthy(&address));
    assert_eq!(server.terminate().0, 0);
    assert!(!path.exists(), "the file is removed at the end");
}

#[test]
fn a_file_that_is_no_socket_stays() {
    let (place, folder) = (Place::new("unix-file"), Folder::new("cli-unix-file"));
    let file = folder.file("relay.sock", "text");
    let refuses = |path: &Path| {
        let address = format!("unix:{}", path.display());
        let refused = place.hark(&["serve", "--listen", &address]).refused();
        assert!(refused.contains("the file there is no socket"), "{refused}");
    };
    refuses(&file);
    let link = folder.join("link");
    std::os::unix::fs::symlink(&file, &link).unwrap();
    refuses(&link);
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "text");
}
