//! The names for which clients accept a certificate.

use std::net::IpAddr;

/// The names and IP addresses of a certificate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CertificateNames {
    /// The host names, without those that stand for several hosts.
    pub(crate) hosts: Vec<String>,
    /// The IP addresses.
    pub(crate) ips: Vec<IpAddr>,
}
