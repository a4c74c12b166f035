//! A certificate that the server orders from Pebble, the ACME server with which Let's Encrypt tests
//! clients. Pebble's own DNS server leads every name to this machine. If Pebble cannot be
//! installed, the test prints a line and ends.

use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use hark_server::tls::PresentedCertificate;
use hark_testkit::clock::now_s;
use hark_testkit::folder::Folder;
use hark_testkit::http::{HttpReply, HttpRequest, metric};
use hark_testkit::server::{Server, free_port};
use hark_testkit::skipped::skip;
use hark_testkit::wait::{PATIENCE, until};
use serde_json::json;

use super::Authority;
use crate::go_program::go_program;
use crate::served::Place;

/// The name of the relay.
const NAME: &str = "relay.example";

/// A running program. Dropping the value kills the program.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A running authority that checks names at one port of this machine.
struct Pebble {
    _programs: [Process; 2],
    folder: Folder,
    directory: String,
}

impl Pebble {
    /// Starts an authority that checks names at `port`.
    fn start(bin: &Path, port: u16) -> Self {
        let folder = Folder::new("tls-pebble");
        let authority = Authority::new();
        let (certificate, key) = authority.sign("127.0.0.1");
        let certificate = folder.file("pebble.pem", certificate);
        let key = folder.file("pebble.key", key);
        folder.file("authority.pem", authority.0.pem());
        let (listen, dns) = (free_port(), free_port());
        let config = json!({ "pebble": {
            "listenAddress": format!("127.0.0.1:{listen}"),
            "certificate": certificate,
            "privateKey": key,
            "httpPort": free_port(),
            "tlsPort": port,
            "keyAlgorithm": "ecdsa",
        } });
        let config = folder.file("pebble.json", config.to_string());
        let mut names = Command::new(bin.join("pebble-challtestsrv"));
        for flag in ["-http01", "-https01", "-doh", "-tlsalpn01", "-defaultIPv6"] {
            names.args([flag, ""]);
        }
        names.arg("-dnsserver").arg(format!("127.0.0.1:{dns}"));
        names.arg("-management").arg(format!("127.0.0.1:{}", free_port()));
        let mut pebble = Command::new(bin.join("pebble"));
        pebble.arg("-config").arg(config).arg("-dnsserver").arg(format!("127.0.0.1:{dns}"));
        // No pauses, and no refusals at random.
        pebble.env("PEBBLE_VA_NOSLEEP", "1").env("PEBBLE_WFE_NONCEREJECT", "0");
        let start = |mut program: Command| {
            program.stdout(Stdio::null()).stderr(Stdio::null());
            Process(program.spawn().expect("the program runs"))
        };
        let programs = [start(names), start(pebble)];
        until("the authority listens", || TcpStream::connect(("127.0.0.1", listen)).is_ok());
        until("the DNS server listens", || TcpStream::connect(("127.0.0.1", dns)).is_ok());
        let directory = format!("https://127.0.0.1:{listen}/dir");
        Self { _programs: programs, folder, directory }
    }
}

/// Reads the page of metrics, and returns the page and the certificate of the server. Nobody trusts
/// the authority, so the certificate is not verified.
fn metrics(address: &str) -> io::Result<(String, PresentedCertificate)> {
    let socket = TcpStream::connect(address)?;
    socket.set_read_timeout(Some(PATIENCE))?;
    let (mut stream, presented) = hark_server::tls::connect(socket, NAME)?;
    stream.write_all(&HttpRequest::new("GET", "/metrics").bytes(address))?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    Ok((HttpReply::parse(&answer)?.ok(), presented))
}

#[test]
fn a_certificate_is_ordered_and_is_there_after_a_takeover() {
    let Some(bin) = go_program("pebble") else {
        skip("Pebble cannot be installed, which takes Go and its module proxy");
        return;
    };
    let port = free_port();
    let pebble = Pebble::start(&bin, port);
    let settings = format!(
        "[tls]\nacme_domains = [\"{NAME}\"]\nacme_contact = \"mailto:me@{NAME}\"\n\
         acme_directory = \"{}\"\n",
        pebble.directory
    );
    let place = Place::new("tls-acme", &settings);
    let listen = format!("127.0.0.1:{port}");
    let serve = |flags: &[&str]| {
        let mut program =
            place.serving(&[&["--unlimited", "--listen", &listen][..], flags].concat());
        program.env("SSL_CERT_FILE", pebble.folder.join("authority.pem"));
        Server::start(&mut program)
    };
    let mut old = serve(&[]);
    old.wait_for_log("the first certificate is ordered");
    old.wait_for_log("a new certificate is in force");
    let (page, first) = metrics(&listen).unwrap();
    assert!(first.is_for(NAME) && first.expires_s() > now_s());
    let expiry = metric(&page, "hark_tls_certificate_expiry_timestamp_seconds");
    assert_eq!(expiry, Some(first.expires_s() as f64));
    let folder = place.data().join("acme");
    assert_eq!(std::fs::metadata(&folder).unwrap().permissions().mode() & 0o777, 0o700);
    let healthz = || place.command(&["healthz", "--at", &listen]).run_with(b"").text();
    assert!(healthz().starts_with("ok\n"));

    // A takeover does not need the authority, so the test replaces the authority's certificate.
    pebble.folder.file("authority.pem", Authority::new().0.pem());
    let mut new = serve(&["--takeover"]);
    assert_eq!(metrics(&listen).unwrap().1, first);
    new.stop();
    let mut again = serve(&[]);
    assert_eq!(metrics(&listen).unwrap().1, first);
    again.stop();
}
