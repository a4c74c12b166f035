//! A certificate with its key, read from two files.

use std::fs;
use std::net::IpAddr;
use std::path::Path;

use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::ParsedCertificate;
use rustls::sign::CertifiedKey;
use x509_cert::Certificate;
use x509_cert::der::Decode as _;
use x509_cert::ext::pkix::SubjectAltName;
use x509_cert::ext::pkix::name::GeneralName;

use super::names::CertificateNames;
use super::{CertificatePaths, PresentedCertificate, TlsError};

/// A certificate with its key, as read from files.
pub(super) struct ReadCertificate {
    pub(super) pair: CertifiedKey,
    /// The time at which the certificate expires, in seconds since 1970.
    pub(super) expires_s: u64,
    pub(super) names: CertificateNames,
}

/// Reads the certificate and its key, and checks that they belong together.
pub(super) fn read(paths: &CertificatePaths) -> Result<ReadCertificate, TlsError> {
    let CertificatePaths { certificate, key } = paths;
    let no_certificate = || TlsError::NoCertificate(certificate.clone());
    let text = read_file(certificate)?;
    let chain = CertificateDer::pem_slice_iter(&text).collect::<Result<Vec<_>, _>>();
    let chain = chain.map_err(|_| no_certificate())?;
    let leaf = chain.first().ok_or_else(no_certificate)?;
    let expires_s = expiry_s(leaf).map_err(|cause| unusable(certificate, cause))?;
    let names = names(leaf);
    let private = PrivateKeyDer::from_pem_slice(&read_file(key)?);
    let private = private.map_err(|_| TlsError::NoKey(key.clone()))?;
    let pair = CertifiedKey::from_der(chain, private, &ring::default_provider());
    let pair = pair.map_err(|error| match error {
        rustls::Error::InconsistentKeys(_) => {
            TlsError::Mismatch { certificate: certificate.clone(), key: key.clone() }
        }
        rustls::Error::InvalidCertificate(_) => unusable(certificate, error),
        _ => unusable(key, error),
    })?;
    Ok(ReadCertificate { pair, expires_s, names })
}

fn read_file(file: &Path) -> Result<Vec<u8>, TlsError> {
    fs::read(file).map_err(|cause| TlsError::Unreadable { file: file.into(), cause })
}

fn unusable(file: &Path, cause: impl std::error::Error + Send + Sync + 'static) -> TlsError {
    TlsError::Unusable { file: file.into(), cause: Box::new(cause) }
}

/// The time at which a certificate expires, in seconds since 1970.
fn expiry_s(certificate: &CertificateDer<'_>) -> Result<u64, x509_cert::der::Error> {
    let parsed = Certificate::from_der(certificate)?;
    Ok(parsed.tbs_certificate.validity.not_after.to_unix_duration().as_secs())
}

/// Returns the names of a certificate. Returns no name if the certificate has no valid list of names
/// (RFC 5280, section 4.2.1.6); clients refuse such a certificate.
fn names(certificate: &CertificateDer<'_>) -> CertificateNames {
    let mut names = CertificateNames::default();
    let Ok(parsed) = Certificate::from_der(certificate) else { return names };
    let Ok(Some((_, listed))) = parsed.tbs_certificate.get::<SubjectAltName>() else {
        return names;
    };
    for name in listed.0 {
        match name {
            GeneralName::DnsName(host) if !host.as_str().contains('*') => {
                names.hosts.push(host.as_str().to_owned());
            }
            GeneralName::IpAddress(bytes) => names.ips.extend(ip(bytes.as_bytes())),
            _ => {}
        }
    }
    names
}

fn ip(bytes: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
    v4.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from)).ok()
}

impl PresentedCertificate {
    /// Reads the fields of a certificate; `None` if the certificate cannot be parsed.
    pub(super) fn of(certificate: &CertificateDer<'_>) -> Option<Self> {
        let expires_s = expiry_s(certificate).ok()?;
        Some(Self { der: certificate.to_vec(), expires_s })
    }

    /// Whether the certificate is valid for a host name or an IP address.
    pub fn is_for(&self, host: &str) -> bool {
        let certificate = CertificateDer::from(self.der.as_slice());
        let parsed = ParsedCertificate::try_from(&certificate);
        let (Ok(parsed), Ok(name)) = (parsed, ServerName::try_from(host)) else { return false };
        rustls::client::verify_server_name(&parsed, &name).is_ok()
    }
}
