//! The addresses of a server that is taken over.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;

use hark_testkit::folder::Folder;
use hark_testkit::server::{Server, free_port};
use hark_testkit::skipped::skip;
use hark_testkit::wait::until;
use hark_testkit::websocket::Socket;

use super::{check, place, send_text};

/// Returns the answer to a request for `/healthz` at a Unix socket.
fn healthz(path: &Path) -> String {
    let mut stream = UnixStream::connect(path).expect("connects");
    let request = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    stream.write_all(request).expect("is sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("is answered");
    answer
}

#[test]
fn a_unix_socket_that_is_no_longer_configured_has_no_file() {
    let (place, folder) = (place("addresses-fewer", ""), Folder::new("takeover-unix-fewer"));
    let path = folder.join("relay.sock");
    let address = format!("unix:{}", path.display());
    let listen = ["--listen", "127.0.0.1:0"];
    let mut old =
        Server::start(&mut place.serving(&[&listen[..], &["--listen", &address]].concat()));
    assert!(healthz(&path).starts_with("HTTP/1.1 200"));
    // A new server that fails to start changes nothing.
    let mut fails = place.serving(&["--takeover", "--listen", "192.0.2.77:1"]);
    assert!(!fails.status().expect("runs").success());
    assert!(healthz(&path).starts_with("HTTP/1.1 200"));
    let new = Server::start(&mut place.serving(&[&listen[..], &["--takeover"]].concat()));
    assert_eq!(new.address, old.address);
    until("the old server removes the file", || !path.exists());
    assert!(old.wait().expect("ends").success());
    assert_eq!(new.terminate().0, 0);
}

#[test]
fn every_listening_socket_moves() {
    let place = place("addresses", "");
    let addresses = ["127.0.0.1", "127.0.0.2"].map(|ip| format!("{ip}:{}", free_port()));
    let folder = Folder::new("takeover-unix");
    let path = folder.join("relay.sock");
    let listen = format!("{},unix:{}", addresses.join(","), path.display());
    let start = |flags: &[&str]| {
        let flags = [&["--unlimited", "--listen", &listen][..], flags].concat();
        Server::start(&mut place.serving(&flags))
    };
    let mut old = start(&[]);
    let mut sockets = addresses.each_ref().map(|address| Socket::connect(address));
    let mut ids: Vec<_> =
        sockets.iter_mut().map(|socket| send_text(socket, true, "at the old server")).collect();
    let new = start(&["--takeover"]);
    assert_eq!(new.address, addresses[0]);
    old.wait_for_log("another process has taken over");
    for address in &addresses {
        // The old server may have accepted this connection just before the takeover.
        ids.push(send_text(&mut Socket::connect(address), true, address));
    }
    assert!(healthz(&path).starts_with("HTTP/1.1 200"));
    ids.extend(sockets.iter_mut().map(|socket| send_text(socket, true, "still at the old server")));
    drop(sockets);
    assert!(old.wait().expect("ends").success());
    for address in &addresses {
        ids.push(send_text(&mut Socket::connect(address), true, "at the new server alone"));
    }
    assert!(healthz(&path).starts_with("HTTP/1.1 200"), "the old server leaves the file");
    assert_eq!(new.terminate().0, 0);
    assert!(!path.exists(), "the file is removed at the end");
    check(&place, &ids);
}

/// `[::]` alone is a socket for IPv4 and IPv6, and cannot be open beside `0.0.0.0`.
#[test]
fn other_sockets_for_all_addresses_are_refused_with_the_remedy() {
    if std::net::TcpListener::bind("[::1]:0").is_err() {
        return skip("this machine has no IPv6");
    }
    let (place, port) = (place("addresses-all", ""), free_port());
    let (both, one) = (format!("0.0.0.0:{port},[::]:{port}"), format!("[::]:{port}"));
    for (before, after) in [(&both, &one), (&one, &both)] {
        let old = Server::start(&mut place.serving(&["--listen", before]));
        let refused = place.serving(&["--takeover", "--listen", after]).output().expect("runs");
        let said = String::from_utf8_lossy(&refused.stderr);
        assert!(!refused.status.success(), "{said}");
        assert!(said.contains("need different sockets"), "{before} to {after}: {said}");
        assert_eq!(old.terminate().0, 0);
    }
}
