//! The certificate of the relay, for TLS without a proxy.

use std::path::Path;

use hark_networks::nostr::admit::host_name;
use hark_server::tls::TlsOptions;

use super::values::Config;

/// The files of the certificate, and the doors that present the certificate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TlsSettings {
    pub(super) certificate: Option<String>,
    pub(super) key: Option<String>,
    pub(super) rest: bool,
}

impl TlsSettings {
    /// Whether the relay speaks TLS.
    pub(crate) fn is_enabled(&self) -> bool {
        self.certificate.is_some()
    }

    /// Returns one line for each fault in the section `[tls]`.
    pub(super) fn faults(&self) -> Vec<String> {
        match (&self.certificate, &self.key) {
            (Some(_), Some(_)) if !cfg!(feature = "tls") => vec![
                "[tls] `certificate`: this program was built without the feature tls; build it with \
                 tls, or put a proxy in front"
                    .into(),
            ],
            (Some(_), None) => vec!["[tls] `certificate` is set without `key`; set both".into()],
            (None, Some(_)) => vec!["[tls] `key` is set without `certificate`; set both".into()],
            _ => Vec::new(),
        }
    }
}

impl Config {
    /// Returns the files of the certificate; `None` without TLS. A relative path is in the directory
    /// of the configuration file.
    pub(crate) fn tls_options(&self) -> Option<TlsOptions> {
        let TlsSettings { certificate, key, rest } = &self.tls;
        let folder = self.file.as_deref().and_then(Path::parent).unwrap_or(Path::new(""));
        Some(TlsOptions {
            certificate: folder.join(certificate.as_ref()?),
            key: folder.join(key.as_ref()?),
            rest: *rest,
        })
    }

    /// Returns the host of `[info] url`; `None` if the URL is not set.
    pub(crate) fn url_host(&self) -> Option<String> {
        let host = host_name(self.info.url.as_deref()?);
        Some(host.trim_matches(['[', ']']).to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(certificate: &str, key: &str) -> String {
        let named = |file: &str| (!file.is_empty()).then(|| file.to_owned());
        let tls = TlsSettings { certificate: named(certificate), key: named(key), rest: false };
        tls.faults().join("\n")
    }

    #[test]
    fn a_certificate_needs_its_key() {
        assert_eq!(faults("", ""), "");
        assert_eq!(faults("a.pem", "b.pem").is_empty(), cfg!(feature = "tls"));
        assert!(faults("a.pem", "").starts_with("[tls] `certificate` is set without `key`"));
        assert!(faults("", "b.pem").starts_with("[tls] `key` is set without `certificate`"));
    }

    #[test]
    fn relative_paths_are_beside_the_configuration_file() {
        let tls = TlsSettings {
            certificate: Some("tls/a.pem".into()),
            key: Some("/b.pem".into()),
            rest: true,
        };
        let config = Config { tls, file: Some("/etc/hark/hark.toml".into()), ..Config::default() };
        let expected = TlsOptions {
            certificate: "/etc/hark/tls/a.pem".into(),
            key: "/b.pem".into(),
            rest: true,
        };
        assert_eq!(config.tls_options(), Some(expected));
        assert_eq!(Config::default().tls_options(), None);
    }
}
