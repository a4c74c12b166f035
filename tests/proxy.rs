//! The server behind a real nginx, with the configuration in docs/proxy.md.

use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};

use hark_testkit::folder::Folder;
use hark_testkit::server::free_address;
use hark_testkit::wait::until;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpSocket;

use crate::cli::support::Place;

/// A running nginx. Dropping the value kills nginx.
struct Nginx(Child);

impl Drop for Nginx {
    fn drop(&mut self) {
        // nginx has no children, since it runs as one process.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns the indented block of the document that contains `line`, without its indentation.
fn block_with(line: &str) -> String {
    let document = include_str!("../docs/proxy.md");
    let (mut blocks, mut is_code) = (vec![String::new()], false);
    for text in document.lines() {
        let code = text.strip_prefix("    ").or(text.is_empty().then_some(""));
        if code.is_some() && !is_code {
            blocks.push(String::new());
        }
        is_code = code.is_some();
        if let (Some(code), Some(block)) = (code, blocks.last_mut()) {
            block.push_str(code);
            block.push('\n');
        }
    }
    let found = blocks.into_iter().find(|block| block.lines().any(|text| text.trim() == line));
    found.unwrap_or_else(|| panic!("docs/proxy.md has no block with `{line}`"))
}

/// The document's block, changed for a test server: without a certificate, on a free port.
fn configuration(port: u16, hark: &str) -> String {
    let block = block_with("proxy_set_header Connection $connection_upgrade;");
    let mut listens = 0;
    let lines = block.lines().filter_map(|line| {
        let word = line.split_whitespace().next().unwrap_or_default();
        match word {
            "listen" => {
                listens += 1;
                (listens == 1).then(|| format!("    listen 127.0.0.1:{port};"))
            }
            "ssl_certificate" | "ssl_certificate_key" => None,
            _ => Some(line.replace("127.0.0.1:7777", hark)),
        }
    });
    let server = lines.collect::<Vec<_>>().join("\n");
    format!(
        "daemon off;\nmaster_process off;\npid nginx.pid;\nerror_log stderr;\nevents {{}}\nhttp {{\n\
         access_log off;\nclient_body_temp_path temp;\nproxy_temp_path temp;\nfastcgi_temp_path temp;\n\
         uwsgi_temp_path temp;\nscgi_temp_path temp;\n{server}\n}}\n"
    )
}

/// Sends a request from an address of this machine, and returns the head of the answer.
fn ask(to: SocketAddr, from: [u8; 4], head: &[u8]) -> String {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind((Ipv4Addr::from(from), 0).into()).unwrap();
        let mut stream = socket.connect(to).await.unwrap();
        let start = b"GET / HTTP/1.1\r\nHost: relay.example.com\r\n";
        stream.write_all(&[start, head, b"\r\n"].concat()).await.unwrap();
        let mut answer = Vec::new();
        while !answer.windows(4).any(|four| four == b"\r\n\r\n") {
            assert!(stream.read_buf(&mut answer).await.unwrap() > 0, "it closes without an answer");
        }
        String::from_utf8_lossy(&answer).into_owned()
    })
}

const UPGRADE: &[u8] =
    b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
                       Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";

#[test]
fn nginx_with_the_documents_block_passes_pages_websockets_and_addresses() {
    passes_pages_websockets_and_addresses(&Place::new("nginx"), None, "$remote_addr");
}

/// An operator of several proxies lets each of them add its client to the header.
#[test]
fn what_a_client_writes_before_nginx_adds_its_address_is_ignored() {
    let adding = "$proxy_add_x_forwarded_for";
    passes_pages_websockets_and_addresses(&Place::new("nginx-adding"), None, adding);
}

#[test]
fn nginx_passes_the_same_to_a_unix_socket() {
    let folder = Folder::new("nginx-unix");
    let socket = format!("unix:{}", folder.join("relay.sock").display());
    let documented = include_str!("../docs/proxy.md");
    assert!(documented.contains("proxy_pass http://unix:/run/hark/relay.sock;"));
    let place = Place::new("nginx-unix");
    passes_pages_websockets_and_addresses(&place, Some(&socket), "$remote_addr");
}

/// Runs nginx before a server, which nginx reaches by a port or by this Unix socket. `forwarded` is
/// the value that nginx gives to the header with the client's address.
fn passes_pages_websockets_and_addresses(place: &Place, socket: Option<&str>, forwarded: &str) {
    let config = place.file(
        "hark.toml",
        b"[server]\ntrusted_proxies = [\"127.0.0.1\"]\n[policy]\ndeny_addresses = [\"127.0.0.2\"]\n",
    );
    let mut flags = vec!["--config", &*config];
    flags.extend(socket.into_iter().flat_map(|socket| ["--listen", socket]));
    let server = place.serve_with(&flags);
    let to: SocketAddr = free_address().parse().unwrap();
    let documented = configuration(to.port(), socket.unwrap_or(&server.address));
    assert!(documented.contains("X-Forwarded-For $remote_addr;"), "{documented}");
    let configuration = documented.replace("For $remote_addr;", &format!("For {forwarded};"));
    place.file("nginx.conf", configuration.as_bytes());
    let program = ["/usr/sbin/nginx", "nginx"]
        .into_iter()
        .find(|name| Command::new(name).arg("-v").stderr(Stdio::null()).status().is_ok());
    let program = program.expect("nginx, which scripts/test installs");
    let folder = format!("{}/", place.path(""));
    let nginx =
        Command::new(program).args(["-p", &folder, "-c", "nginx.conf", "-e", "stderr"]).spawn();
    let mut nginx = Nginx(nginx.expect("nginx starts"));
    until("nginx listens", || {
        assert_eq!(nginx.0.try_wait().unwrap(), None, "nginx refuses the block");
        TcpStream::connect(to).is_ok()
    });

    let page = ask(to, [127, 0, 0, 3], b"Accept: text/html\r\n");
    assert!(page.starts_with("HTTP/1.1 200"), "{page}");
    let upgraded = ask(to, [127, 0, 0, 3], UPGRADE);
    assert!(upgraded.starts_with("HTTP/1.1 101"), "{upgraded}");
    // The server uses the client's address from nginx and ignores an address that the client sends.
    let forged = [&b""[..], b"X-Forwarded-For: 127.0.0.3\r\n", b"X-Forwarded-For: \xff\r\n"];
    for forged in forged {
        let denied = ask(to, [127, 0, 0, 2], &[UPGRADE, forged].concat());
        assert!(denied.starts_with("HTTP/1.1 403"), "{denied}");
    }
    assert_eq!(server.terminate().0, 0);
}
