//! The addresses of a server that is taken over.

use hark_testkit::server::{Server, free_port};
use hark_testkit::websocket::Socket;

use super::{check, place, send_text};

#[test]
fn every_listening_socket_moves() {
    let place = place("addresses", "");
    let addresses = ["127.0.0.1", "127.0.0.2"].map(|ip| format!("{ip}:{}", free_port()));
    let listen = addresses.join(",");
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
        // The old server may have accepted this connection just before.
        ids.push(send_text(&mut Socket::connect(address), true, address));
    }
    ids.extend(sockets.iter_mut().map(|socket| send_text(socket, true, "still at the old server")));
    drop(sockets);
    assert!(old.wait().expect("ends").success());
    for address in &addresses {
        ids.push(send_text(&mut Socket::connect(address), true, "at the new server alone"));
    }
    drop(new);
    check(&place, &ids);
}
