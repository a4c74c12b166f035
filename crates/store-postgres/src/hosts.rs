//! Connects to one of the hosts of an address.
//!
//! The driver tries one host after another. If a host has accepted the connection, the driver waits
//! for its answer without a limit. So if a host hung, or its packets were lost, the driver would
//! never try a later host. This module also tries the next host if a host has not answered soon.

use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use tokio_postgres::config::{Host, LoadBalanceHosts};
use tokio_postgres::tls::MakeTlsConnect;
use tokio_postgres::{Client, Config, Connection, Error, Socket};
use tokio_postgres_rustls::MakeRustlsConnect;

/// The TLS stream of a connection.
pub(crate) type TlsStream = <MakeRustlsConnect as MakeTlsConnect<Socket>>::Stream;

/// Time after which the next host is tried as well.
const NEXT_AFTER: Duration = Duration::from_millis(300);

/// Connects to the first host, in the order of the address, that answers in time and has the
/// properties that the address requires. If all hosts fail, returns the fault of the last host.
pub(crate) async fn connect(
    config: &Config,
    tls: &MakeRustlsConnect,
) -> Result<(Client, Connection<Socket, TlsStream>), Error> {
    let mut hosts = of_each_host(config).into_iter().enumerate();
    if hosts.len() < 2 {
        return config.connect(tls.clone()).await;
    }
    let mut attempts = FuturesUnordered::new();
    let mut last: Option<(usize, Error)> = None;
    loop {
        let next = hosts.next();
        let is_next = next.is_some();
        if let Some((at, host)) = next {
            let tls = tls.clone();
            attempts.push(async move { (at, host.connect(tls).await) });
        }
        let ended = if is_next && hosts.len() > 0 {
            match tokio::time::timeout(NEXT_AFTER, attempts.next()).await {
                Ok(ended) => ended,
                Err(_) => continue,
            }
        } else {
            attempts.next().await
        };
        match (ended, last.take()) {
            (Some((_, Ok(connected))), _) => return Ok(connected),
            (Some((at, Err(fault))), before) => {
                let is_later = before.as_ref().is_none_or(|(before, _)| *before < at);
                last = if is_later { Some((at, fault)) } else { before };
            }
            (None, Some((_, fault))) => return Err(fault),
            // The address has hosts, so there was an attempt.
            (None, None) => return config.connect(tls.clone()).await,
        }
    }
}

/// Returns the settings of an address for each of its hosts. Returns an empty list if the
/// numbers of host names, IP addresses and ports do not match; then the driver reports the fault.
fn of_each_host(config: &Config) -> Vec<Config> {
    let (names, addresses) = (config.get_hosts(), config.get_hostaddrs());
    let (ports, count) = (config.get_ports(), names.len().max(addresses.len()));
    let fits = |length: usize| length == 0 || length == count;
    if !fits(names.len()) || !fits(addresses.len()) || (ports.len() > 1 && ports.len() != count) {
        return Vec::new();
    }
    let mut hosts: Vec<Config> = (0..count)
        .map(|at| {
            let mut host = without_hosts(config);
            match names.get(at) {
                Some(Host::Tcp(name)) => {
                    host.host(name);
                }
                Some(Host::Unix(path)) => {
                    host.host_path(path);
                }
                None => {}
            }
            if let Some(address) = addresses.get(at) {
                host.hostaddr(*address);
            }
            if let Some(port) = ports.get(at).or(ports.first()) {
                host.port(*port);
            }
            host
        })
        .collect();
    if config.get_load_balance_hosts() == LoadBalanceHosts::Random && count > 0 {
        let first = getrandom::u32().map_or(0, |number| number as usize % count);
        hosts.rotate_left(first);
    }
    hosts
}

/// Returns all settings of an address except its hosts and ports.
fn without_hosts(old: &Config) -> Config {
    let mut config = Config::new();
    if let Some(user) = old.get_user() {
        config.user(user);
    }
    if let Some(password) = old.get_password() {
        config.password(password);
    }
    if let Some(name) = old.get_dbname() {
        config.dbname(name);
    }
    if let Some(options) = old.get_options() {
        config.options(options);
    }
    if let Some(name) = old.get_application_name() {
        config.application_name(name);
    }
    if let Some(limit) = old.get_connect_timeout() {
        config.connect_timeout(*limit);
    }
    if let Some(limit) = old.get_tcp_user_timeout() {
        config.tcp_user_timeout(*limit);
    }
    if let Some(interval) = old.get_keepalives_interval() {
        config.keepalives_interval(interval);
    }
    if let Some(retries) = old.get_keepalives_retries() {
        config.keepalives_retries(retries);
    }
    config.keepalives(old.get_keepalives());
    config.keepalives_idle(old.get_keepalives_idle());
    config.ssl_mode(old.get_ssl_mode());
    config.ssl_negotiation(old.get_ssl_negotiation());
    config.channel_binding(old.get_channel_binding());
    config.target_session_attrs(old.get_target_session_attrs());
    config.load_balance_hosts(old.get_load_balance_hosts());
    config
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_host_has_its_own_name_and_port_and_all_other_settings() {
        let text = "host=a,b hostaddr=10.0.0.1,10.0.0.2 port=5001,5002 user=u password=p dbname=d \
                    options=o application_name=n connect_timeout=7 tcp_user_timeout=8 keepalives=0 \
                    keepalives_idle=9 keepalives_interval=10 keepalives_retries=11 \
                    sslmode=require sslnegotiation=direct channel_binding=require \
                    target_session_attrs=read-write";
        let whole: Config = text.parse().unwrap();
        let hosts = of_each_host(&whole);
        for (host, words) in hosts
            .iter()
            .zip(["host=a hostaddr=10.0.0.1 port=5001", "host=b hostaddr=10.0.0.2 port=5002"])
        {
            let rest = text.split_once(" user=").unwrap().1;
            assert_eq!(*host, format!("{words} user={rest}").parse().unwrap());
        }
        assert_eq!(hosts.len(), 2);
    }

    #[test]
    fn hosts_may_share_a_port_and_an_address_that_is_wrong_is_left_to_the_driver() {
        let read = |text: &str| of_each_host(&text.parse().unwrap());
        let shared = read("host=a,b,c port=5001 user=u");
        assert!(shared.len() == 3 && shared.iter().all(|host| host.get_ports() == [5001]));
        assert!(read("host=a,b hostaddr=10.0.0.1 user=u").is_empty());
        assert!(read("host=a,b,c port=1,2 user=u").is_empty());
    }
}
