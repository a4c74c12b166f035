//! `hark healthz`: queries the health of a running server over HTTP, for containers without `curl`.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::Args;
use hark_server::tls::{self, PresentedCertificate};
use hark_server::{ListenAddress, unix_socket};
use serde_json::json;

use crate::config::Config;
use crate::location::ArchiveLocation;
use crate::print;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  hark healthz
  hark healthz --at 127.0.0.1:9100
  hark healthz --json

Prints `ok` and exits with code 0 if the server serves and has no problem. Otherwise prints one line
for each problem, and exits with code 1. GET /healthz returns the same text over HTTP.

With --json, the object has the address (`at`), whether the server is `healthy`, the HTTP `status`, which is null \
without an answer, and the `lines` of reasons and advice. The exit code is the same.")]
pub(crate) struct HealthzArgs {
    /// The server's address [default: server.metrics_listen, or else server.listen]
    #[arg(long, value_name = "ADDR:PORT")]
    at: Option<ListenAddress>,
    /// Seconds after which a server that does not answer counts as unhealthy
    #[arg(long, value_name = "SECONDS", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..))]
    timeout: u64,
    /// Print one JSON object, even if the server does not answer
    #[arg(long)]
    json: bool,
}

/// Maximum size of an answer, in bytes.
const ANSWER_BYTES_MAX: u64 = 64 << 10;

/// The answer of a server.
pub(crate) struct HealthAnswer {
    /// The whole answer.
    pub(crate) text: String,
    /// The certificate of the server; `None` without TLS.
    pub(crate) certificate: Option<PresentedCertificate>,
}

pub(crate) fn run(args: &HealthzArgs, location: &ArchiveLocation) -> anyhow::Result<ExitCode> {
    let at = args.at.clone().map_or_else(|| served_at(&location.config), Ok)?;
    let has_tls = speaks_tls(&location.config, &at);
    let found = health(&at, has_tls, Duration::from_secs(args.timeout));
    let status = found.as_ref().ok().map(|(status, _)| *status);
    let is_healthy = status == Some(200);
    if args.json {
        let text = found.map_or_else(|error| format!("{error:#}"), |(_, body)| body);
        let lines: Vec<&str> = text.lines().filter(|line| *line != "ok").collect();
        let at = at.to_string();
        let json = json!({ "at": at, "healthy": is_healthy, "status": status, "lines": lines });
        print::line(&json.to_string())?;
    } else {
        let (_, body) = found?;
        print::line(body.trim_end())?;
    }
    Ok(if is_healthy { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Returns the status and the body of the server's answer.
fn health(at: &ListenAddress, has_tls: bool, timeout: Duration) -> anyhow::Result<(u16, String)> {
    let answer = ask(at, has_tls, timeout)
        .with_context(|| format!("the server at {at} does not answer /healthz"))?;
    let Some((status, body)) = parse(&answer.text) else {
        bail!("the program that answers at {at} is no HTTP server");
    };
    Ok((status, body.to_owned()))
}

/// Returns the address at which a server with this configuration answers `/healthz` on this
/// machine. The metrics address comes first, then the first address that is not a Unix socket,
/// since some users may not have access to the socket.
pub(crate) fn served_at(config: &Config) -> anyhow::Result<ListenAddress> {
    let metrics = config.metrics.listen.map(ListenAddress::Ip);
    let is_ip = |address: &&ListenAddress| !matches!(address, ListenAddress::Unix(_));
    let first = config.listen.iter().find(is_ip).or(config.listen.first());
    let first = metrics.or_else(|| first.cloned());
    Ok(match first.context("the configuration has no address of a server")? {
        ListenAddress::Ip(addr) => ListenAddress::Ip(reached(addr)),
        other @ (ListenAddress::Host(..) | ListenAddress::Unix(_)) => other,
    })
}

/// Whether the server of this configuration speaks TLS at an address.
pub(crate) fn speaks_tls(config: &Config, at: &ListenAddress) -> bool {
    let metrics = config.metrics.listen.map(|addr| ListenAddress::Ip(reached(addr)));
    let is_unix = matches!(at, ListenAddress::Unix(_));
    config.tls.is_for_relay() && !is_unix && metrics.as_ref() != Some(at)
}

/// Returns the status and the body of an answer, or `None` if the answer is not HTTP.
pub(crate) fn parse(answer: &str) -> Option<(u16, &str)> {
    let status = answer.split(' ').nth(1)?.parse().ok()?;
    Some((status, answer.split_once("\r\n\r\n")?.1))
}

/// Returns the address at which processes on the same machine reach a server that listens on
/// `listen`.
fn reached(listen: SocketAddr) -> SocketAddr {
    let ip = match listen.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, listen.port())
}

/// Returns the whole answer to a request for `/healthz`. If a name has several addresses, the first
/// address that accepts a connection gets the request. The certificate of a server is not verified.
pub(crate) fn ask(
    at: &ListenAddress,
    has_tls: bool,
    timeout: Duration,
) -> std::io::Result<HealthAnswer> {
    let plain = |text| HealthAnswer { text, certificate: None };
    let name = match at {
        ListenAddress::Unix(path) => {
            let stream = unix_socket::connect(path)?;
            stream.set_read_timeout(Some(timeout))?;
            stream.set_write_timeout(Some(timeout))?;
            return exchange(stream, "localhost").map(plain);
        }
        ListenAddress::Ip(addr) => addr.ip().to_string(),
        ListenAddress::Host(name, _) => name.clone(),
    };
    let host = at.to_string();
    if has_tls {
        match tls::connect(connect(at, timeout)?, &name) {
            Ok((stream, presented)) => {
                let text = exchange(stream, &host)?;
                return Ok(HealthAnswer { text, certificate: Some(presented) });
            }
            // A server that waits for its database answers without TLS.
            Err(error) if error.kind() == std::io::ErrorKind::InvalidData => {}
            Err(error) => return Err(error),
        }
    }
    exchange(connect(at, timeout)?, &host).map(plain)
}

fn exchange(mut stream: impl Read + Write, host: &str) -> std::io::Result<String> {
    let request = format!("GET /healthz HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes())?;
    let mut answer = Vec::new();
    stream.take(ANSWER_BYTES_MAX).read_to_end(&mut answer)?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

fn connect(at: &ListenAddress, timeout: Duration) -> std::io::Result<TcpStream> {
    let mut refused = None;
    for addr in at.resolve()? {
        match TcpStream::connect_timeout(&addr, timeout) {
            Ok(stream) => {
                stream.set_read_timeout(Some(timeout))?;
                stream.set_write_timeout(Some(timeout))?;
                return Ok(stream);
            }
            Err(error) => refused = Some(error),
        }
    }
    Err(refused.unwrap_or_else(|| std::io::ErrorKind::NotFound.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_listens_everywhere_is_asked_on_this_machine() {
        for (listen, at) in [
            ("0.0.0.0:7777", "127.0.0.1:7777"),
            ("[::]:1", "[::1]:1"),
            ("192.0.2.1:80", "192.0.2.1:80"),
        ] {
            assert_eq!(reached(listen.parse().unwrap()), at.parse().unwrap());
        }
    }
}
