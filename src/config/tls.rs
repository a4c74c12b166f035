//! The certificate of the relay, for TLS without a proxy.

use std::path::Path;

use hark_server::ListenAddress;
use hark_server::tls::{AcmeOptions, CertificatePaths, CertificateSource, TlsOptions};

/// The origin of the certificate, and the doors that present the certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TlsSettings {
    pub(super) certificate: Option<String>,
    pub(super) key: Option<String>,
    pub(super) acme_domains: Vec<String>,
    pub(super) acme_contact: Option<String>,
    pub(super) acme_directory: String,
    pub(super) relay: bool,
    pub(super) rest: bool,
}

impl Default for TlsSettings {
    fn default() -> Self {
        Self {
            certificate: None,
            key: None,
            acme_domains: Vec::new(),
            acme_contact: None,
            acme_directory: "https://acme-v02.api.letsencrypt.org/directory".into(),
            relay: true,
            rest: false,
        }
    }
}

impl TlsSettings {
    /// Whether the server has a certificate.
    pub(crate) fn is_enabled(&self) -> bool {
        self.certificate.is_some() || !self.acme_domains.is_empty()
    }

    /// Whether the relay speaks TLS.
    pub(crate) fn is_for_relay(&self) -> bool {
        self.is_enabled() && self.relay
    }

    /// Whether a door speaks TLS. `has_peers` tells whether Waku's peers use the certificate.
    pub(super) fn is_used(&self, has_peers: bool) -> bool {
        self.relay || self.rest || has_peers
    }

    /// Returns the origin of the certificate; `None` without TLS. A relative path of a file is in
    /// `folder`. `data` is the archive's directory.
    pub(super) fn options(&self, folder: &Path, data: &Path) -> Option<TlsOptions> {
        let source = if self.acme_domains.is_empty() {
            CertificateSource::Files(CertificatePaths {
                certificate: folder.join(self.certificate.as_ref()?),
                key: folder.join(self.key.as_ref()?),
            })
        } else {
            CertificateSource::Acme(AcmeOptions {
                domains: self.acme_domains.clone(),
                contact: self.acme_contact.clone(),
                directory: self.acme_directory.clone(),
                folder: data.join("acme"),
            })
        };
        Some(TlsOptions { source, relay: self.relay, rest: self.rest })
    }

    /// Returns one line for each fault in the section `[tls]`.
    pub(super) fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        match (&self.certificate, &self.key) {
            (Some(_), None) => {
                faults.push("[tls] `certificate` is set without `key`; set both".into());
            }
            (None, Some(_)) => {
                faults.push("[tls] `key` is set without `certificate`; set both".into());
            }
            _ => {}
        }
        if self.certificate.is_some() && !self.acme_domains.is_empty() {
            let text = "[tls] `acme_domains` and `certificate` are both set; set one of the two";
            faults.push(text.into());
        }
        for domain in self.acme_domains.iter().filter(|domain| !is_domain(domain)) {
            faults.push(format!(
                "[tls] `acme_domains` has {domain:?}, which is no host name such as relay.example"
            ));
        }
        let is_contact = |contact: &String| contact.starts_with("mailto:");
        if let Some(contact) = self.acme_contact.as_ref().filter(|contact| !is_contact(contact)) {
            faults
                .push(format!("[tls] `acme_contact` must begin with mailto:, but is {contact:?}"));
        }
        let directory = &self.acme_directory;
        if directory.strip_prefix("https://").is_none_or(str::is_empty) {
            faults.push(format!(
                "[tls] `acme_directory` must be a URL with https://, but is {directory:?}"
            ));
        }
        if !cfg!(feature = "tls") && self.is_enabled() && faults.is_empty() {
            let key = if self.certificate.is_some() { "certificate" } else { "acme_domains" };
            faults.push(format!(
                "[tls] `{key}`: this program was built without the feature tls; build it with tls, or \
                 put a proxy in front"
            ));
        }
        faults
    }
}

/// Whether a text is the name of one host.
fn is_domain(text: &str) -> bool {
    matches!(format!("{text}:443").parse(), Ok(ListenAddress::Host(..)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(change: impl FnOnce(&mut TlsSettings)) -> String {
        let mut tls = TlsSettings::default();
        change(&mut tls);
        tls.faults().join("\n")
    }

    #[test]
    fn a_certificate_has_one_origin_that_is_complete() {
        let named = |file: &str| (!file.is_empty()).then(|| file.to_owned());
        let of_files = |certificate: &str, key: &str| {
            faults(|tls| (tls.certificate, tls.key) = (named(certificate), named(key)))
        };
        assert_eq!(of_files("", ""), "");
        assert_eq!(of_files("a.pem", "b.pem").is_empty(), cfg!(feature = "tls"));
        assert!(of_files("a.pem", "").starts_with("[tls] `certificate` is set without `key`"));
        assert!(of_files("", "b.pem").starts_with("[tls] `key` is set without `certificate`"));
        let of_names = |names: &[&str]| {
            let names = names.iter().map(|&name| name.to_owned()).collect();
            faults(|tls| tls.acme_domains = names)
        };
        assert_eq!(of_names(&["relay.example", "a.b"]).is_empty(), cfg!(feature = "tls"));
        for name in ["*.relay.example", "no name", "127.0.0.1", "relay.example:443", ""] {
            assert!(of_names(&[name]).contains("which is no host name"), "{name}");
        }
        let both = faults(|tls| {
            (tls.certificate, tls.key) = (named("a.pem"), named("b.pem"));
            tls.acme_domains = vec!["relay.example".into()];
        });
        assert!(both.contains("are both set"), "{both}");
        assert!(faults(|tls| tls.acme_contact = named("me@a.b")).contains("mailto:"));
        assert!(faults(|tls| tls.acme_directory = "http://a".into()).contains("https://"));
    }

    #[test]
    fn relative_paths_are_beside_the_configuration_file() {
        let tls = TlsSettings {
            certificate: Some("tls/a.pem".into()),
            key: Some("/b.pem".into()),
            rest: true,
            ..TlsSettings::default()
        };
        let folder = Path::new("/etc/hark");
        let paths =
            CertificatePaths { certificate: "/etc/hark/tls/a.pem".into(), key: "/b.pem".into() };
        let source = CertificateSource::Files(paths);
        let expected = TlsOptions { source, relay: true, rest: true };
        assert_eq!(tls.options(folder, Path::new("data")), Some(expected));
        assert_eq!(TlsSettings::default().options(folder, Path::new("data")), None);
        let acme_domains = vec!["relay.example".into()];
        let tls = TlsSettings { acme_domains, ..TlsSettings::default() };
        let options = tls.options(folder, Path::new("data")).unwrap();
        assert!(matches!(
            options.source,
            CertificateSource::Acme(acme) if acme.folder == Path::new("data/acme")
        ));
    }
}
