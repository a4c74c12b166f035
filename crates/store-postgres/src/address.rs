//! The address of a database and its TLS settings: libpq's URL, with `sslmode`, `sslrootcert`,
//! `sslcert` and `sslkey` as in PostgreSQL's manual (libpq, "SSL Support"). If the URL has no
//! password, Hark searches the same places as libpq (`password`).

use std::error::Error as _;
use std::net::IpAddr;
use std::sync::Arc;

use percent_encoding::percent_decode_str;
use rustls::client::WebPkiServerVerifier as Roots;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, ring, verify_tls12_signature, verify_tls13_signature,
};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
};
use tokio_postgres::config::{Host, SslMode};
use tokio_postgres::{Client, Config, Connection, Socket};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::cluster::NodeAddress;
use crate::hosts::{self, TlsStream};
use crate::password::{self, PassedOver};
use crate::shown::{has_secret, is_key_value, is_torn, shown};

/// Why an address is invalid.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0}")]
pub struct AddressError(String);

/// Why a connection failed.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The certificate of the database server does not pass the checks that the settings of the
    /// address require.
    #[error(
        "the database's certificate is not accepted: {0}; sslrootcert=FILE in its URL names the \
         authority to trust"
    )]
    Certificate(String),
    /// The database requires a password. The password file was not used, because its mode lets
    /// other users open the file.
    #[error("the database asks for a password, and {0}")]
    Password(String),
    /// The driver's error.
    #[error(transparent)]
    Database(tokio_postgres::Error),
}

/// The address of a database.
#[derive(Clone)]
pub struct DatabaseAddress {
    /// All settings except TLS.
    pub config: Config,
    pub(crate) tls: MakeRustlsConnect,
    /// The password file that was not used; see `password`.
    pub(crate) passed_over: Option<PassedOver>,
}

/// The properties of a server's certificate that are checked.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum CertificateCheck {
    #[default]
    Nothing,
    /// The authority that signed the certificate.
    Authority,
    /// The authority that signed the certificate, and the name for which the certificate was made.
    Name,
}

/// The TLS parameters of a URL.
#[derive(Default)]
struct TlsParameters {
    mode: Option<SslMode>,
    check: CertificateCheck,
    roots: Option<String>,
    certificate: Option<String>,
    key: Option<String>,
    /// The password file. The driver does not support this parameter.
    passfile: Option<String>,
}

impl DatabaseAddress {
    /// Reads a URL, or libpq's list of parameters.
    pub fn read(url: &str) -> Result<Self, AddressError> {
        if is_torn(url) {
            return Err(AddressError(
                "an @ in a password, a name or a parameter is written as %40".into(),
            ));
        }
        let (rest, wishes) = TlsParameters::take(url)?;
        let mut config: Config = rest.parse().map_err(|error| unreadable(url, &error))?;
        if let Some(mode) = wishes.mode {
            config.ssl_mode(mode);
        }
        let mut passed_over = None;
        match password::find(&config, wishes.passfile.as_deref()) {
            Ok(Some(password)) => {
                config.password(password);
            }
            Ok(None) => {}
            Err(file) => {
                tracing::warn!("{file}");
                passed_over = Some(file);
            }
        }
        let tls = MakeRustlsConnect::new(wishes.client().map_err(AddressError)?);
        Ok(Self { config, tls, passed_over })
    }

    /// Returns the names of the hosts, or the directories of their Unix sockets.
    pub fn hosts(&self) -> impl Iterator<Item = String> + '_ {
        self.config.get_hosts().iter().map(|host| match host {
            Host::Tcp(name) => name.clone(),
            Host::Unix(path) => path.display().to_string(),
        })
    }

    /// Whether the address alone shows that the database runs on this machine.
    pub(crate) fn is_near(&self) -> bool {
        let loopback = |address: &IpAddr| address.is_loopback();
        let addresses = self.config.get_hostaddrs();
        if !addresses.is_empty() {
            return addresses.iter().all(loopback);
        }
        self.config.get_hosts().iter().all(|host| match host {
            Host::Tcp(name) => name == "localhost" || name.parse().is_ok_and(|one| loopback(&one)),
            Host::Unix(_) => true,
        })
    }

    /// Returns the address of a database on another node of a cluster, with the same user, password
    /// and TLS settings. If `database` is `None`, the name of the database stays the same.
    pub(crate) fn of_node(&self, node: &NodeAddress, database: Option<&str>) -> Self {
        let (old, mut config) = (&self.config, Config::new());
        config.host(&node.host).port(node.port);
        config.ssl_mode(old.get_ssl_mode()).channel_binding(old.get_channel_binding());
        if let Some(user) = old.get_user() {
            config.user(user);
        }
        if let Some(password) = old.get_password() {
            config.password(password);
        }
        if let Some(name) = database.or(old.get_dbname()) {
            config.dbname(name);
        }
        if let Some(options) = old.get_options() {
            config.options(options);
        }
        if let Some(name) = old.get_application_name() {
            config.application_name(name);
        }
        Self { config, tls: self.tls.clone(), passed_over: self.passed_over.clone() }
    }

    /// Connects to the database. If one of several hosts in the address does not answer, the others
    /// are still tried.
    pub async fn connect(&self) -> Result<(Client, Connection<Socket, TlsStream>), ConnectError> {
        hosts::connect(&self.config, &self.tls).await.map_err(|error| {
            if let Some(reason) = certificate(&error) {
                return ConnectError::Certificate(reason);
            }
            // The driver reports a missing password only by this message.
            match &self.passed_over {
                Some(file) if with_cause(&error).contains("password missing") => {
                    ConnectError::Password(file.to_string())
                }
                _ => ConnectError::Database(error),
            }
        })
    }
}

/// Returns the reason why the driver cannot read an address. If the address may contain a password,
/// the driver's message is left out, because it may quote a part of the password.
fn unreadable(address: &str, error: &tokio_postgres::Error) -> AddressError {
    let said = with_cause(error);
    if !has_secret(address) || said.contains("invalid value for option") {
        return AddressError(said);
    }
    AddressError(format!(
        "{} cannot be read; what is special in a password is written in quotes in a list of \
         parameters, and as %40 for @ in a URL",
        shown(address)
    ))
}

/// Returns the driver's error message, with its cause.
pub(crate) fn with_cause(error: &tokio_postgres::Error) -> String {
    let cause = error.source().map_or(String::new(), |cause| format!(": {cause}"));
    format!("{error}{cause}")
}

/// If the server's certificate caused the error, returns the fault of the certificate.
fn certificate(error: &tokio_postgres::Error) -> Option<String> {
    let io = error.source()?.downcast_ref::<std::io::Error>()?;
    match io.get_ref()?.downcast_ref::<rustls::Error>()? {
        rustls::Error::InvalidCertificate(reason) => Some(reason.to_string()),
        _ => None,
    }
}

impl TlsParameters {
    /// Splits a URL into the URL for the driver and the parameters that Hark handles itself.
    fn take(url: &str) -> Result<(String, Self), AddressError> {
        let Some((base, parameters)) = url.split_once('?').filter(|_| !is_key_value(url)) else {
            return Ok((url.into(), Self::default()));
        };
        let (mut wishes, mut others) = (Self::default(), Vec::new());
        for parameter in parameters.split('&') {
            let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
            let value = percent_decode_str(value).decode_utf8_lossy().into_owned();
            match name {
                "sslmode" => (wishes.mode, wishes.check) = mode(&value)?,
                "sslrootcert" => wishes.roots = Some(value),
                "sslcert" => wishes.certificate = Some(value),
                "sslkey" => wishes.key = Some(value),
                "passfile" => wishes.passfile = Some(value),
                _ => others.push(parameter),
            }
        }
        if wishes.mode == Some(SslMode::Require)
            && wishes.check == CertificateCheck::Nothing
            && wishes.roots.is_some()
        {
            // If the URL names an authority, the authority is checked.
            wishes.check = CertificateCheck::Authority;
        }
        let mark = if others.is_empty() { "" } else { "?" };
        Ok((format!("{base}{mark}{}", others.join("&")), wishes))
    }

    /// Returns the TLS configuration of connections.
    fn client(&self) -> Result<ClientConfig, String> {
        let provider = Arc::new(ring::default_provider());
        let roots = match self.check {
            CertificateCheck::Nothing => None,
            CertificateCheck::Authority | CertificateCheck::Name => Some(self.roots(&provider)?),
        };
        let algorithms = provider.signature_verification_algorithms;
        let verifier = CertificateVerifier {
            roots,
            by_name: self.check == CertificateCheck::Name,
            algorithms,
        };
        let client = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier));
        let (Some(certificate), Some(key)) = (&self.certificate, &self.key) else {
            if self.certificate.is_some() || self.key.is_some() {
                return Err("sslcert and sslkey belong together; one of them is missing".into());
            }
            return Ok(client.with_no_client_auth());
        };
        let key = PrivateKeyDer::from_pem_file(key).map_err(|error| {
            format!("sslkey: the file that it names has no private key: {error}")
        })?;
        client
            .with_client_auth_cert(certificates("sslcert", certificate)?, key)
            .map_err(|error| format!("sslcert and sslkey: {error}"))
    }

    fn roots(&self, provider: &Arc<CryptoProvider>) -> Result<Arc<Roots>, String> {
        let mut store = RootCertStore::empty();
        match self.roots.as_deref() {
            None | Some("system") => {
                store.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
                if store.is_empty() {
                    return Err(
                        "this system trusts no authority (is ca-certificates installed?); \
                         name one with sslrootcert=FILE"
                            .into(),
                    );
                }
            }
            Some(file) => {
                for certificate in certificates("sslrootcert", file)? {
                    store
                        .add(certificate)
                        .map_err(|error| format!("sslrootcert: {file}: {error}"))?;
                }
            }
        }
        Roots::builder_with_provider(Arc::new(store), Arc::clone(provider))
            .build()
            .map_err(|error| error.to_string())
    }
}

fn mode(value: &str) -> Result<(Option<SslMode>, CertificateCheck), AddressError> {
    let (mode, check) = match value {
        "disable" => (SslMode::Disable, CertificateCheck::Nothing),
        "prefer" => (SslMode::Prefer, CertificateCheck::Nothing),
        "require" => (SslMode::Require, CertificateCheck::Nothing),
        "verify-ca" => (SslMode::Require, CertificateCheck::Authority),
        "verify-full" => (SslMode::Require, CertificateCheck::Name),
        _ => {
            return Err(AddressError(
                "there is no such sslmode; there are disable, prefer, require, verify-ca and \
                 verify-full"
                    .into(),
            ));
        }
    };
    Ok((Some(mode), check))
}

fn certificates(name: &str, file: &str) -> Result<Vec<CertificateDer<'static>>, String> {
    let read = CertificateDer::pem_file_iter(file).and_then(Iterator::collect);
    let all: Vec<_> = read.map_err(|error| format!("{name}: {file}: {error}"))?;
    if all.is_empty() {
        return Err(format!("{name}: {file} has no certificate"));
    }
    Ok(all)
}

/// Checks a server's certificate as far as `sslmode` requires.
///
/// If no property must be checked, signatures made with the certificate are not verified, because
/// Citus makes certificates of X.509 version 1, which rustls cannot read.
#[derive(Debug)]
struct CertificateVerifier {
    roots: Option<Arc<Roots>>,
    by_name: bool,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ServerCertVerifier for CertificateVerifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        use CertificateError::{NotValidForName, NotValidForNameContext};
        let Some(roots) = &self.roots else { return Ok(ServerCertVerified::assertion()) };
        match roots.verify_server_cert(certificate, intermediates, name, ocsp, now) {
            // rustls checks the name last, so only the name is wrong in this certificate.
            Err(rustls::Error::InvalidCertificate(
                NotValidForName | NotValidForNameContext { .. },
            )) if !self.by_name => Ok(ServerCertVerified::assertion()),
            verified => verified,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        if self.roots.is_none() {
            return Ok(HandshakeSignatureValid::assertion());
        }
        verify_tls12_signature(message, certificate, signed, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        if self.roots.is_none() {
            return Ok(HandshakeSignatureValid::assertion());
        }
        verify_tls13_signature(message, certificate, signed, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_about_tls_is_taken_out_of_a_url() {
        let url = "postgres://me@host/base?sslmode=verify-full&application_name=a%20b\
                   &sslrootcert=%2Fa%20b.pem";
        let (rest, wishes) = TlsParameters::take(url).unwrap();
        assert_eq!(rest, "postgres://me@host/base?application_name=a%20b");
        assert!(wishes.mode == Some(SslMode::Require) && wishes.check == CertificateCheck::Name);
        assert_eq!(wishes.roots.as_deref(), Some("/a b.pem"));
        let (rest, wishes) = TlsParameters::take("postgres://host/base?sslmode=disable").unwrap();
        assert_eq!((rest.as_str(), wishes.mode), ("postgres://host/base", Some(SslMode::Disable)));
        let (_, wishes) =
            TlsParameters::take("postgres://host?sslmode=require&sslrootcert=a").unwrap();
        assert!(wishes.check == CertificateCheck::Authority);
    }

    #[test]
    fn a_database_on_this_machine_is_known_by_its_address() {
        let is_near = |url| DatabaseAddress::read(url).unwrap().is_near();
        for url in [
            "postgres://localhost/b",
            "postgres://me@127.0.0.1:5433/b",
            "postgres://[::1]/b",
            "host=/run/postgresql dbname=b",
            "host=db.example hostaddr=127.0.0.1",
        ] {
            assert!(is_near(url), "{url}");
        }
        for url in [
            "postgres://db.example/b",
            "postgres://10.0.0.2/b",
            "postgres://localhost,10.0.0.2/b",
            "host=localhost hostaddr=10.0.0.2",
        ] {
            assert!(!is_near(url), "{url}");
        }
    }

    #[test]
    fn what_the_driver_reads_itself_stays() {
        let mode = |url| DatabaseAddress::read(url).unwrap().config.get_ssl_mode();
        assert_eq!(mode("host=a dbname=b sslmode=require"), SslMode::Require);
        assert_eq!(mode("host=a dbname=b"), SslMode::Prefer);
        assert_eq!(mode("postgres://a/b"), SslMode::Prefer);
    }

    #[test]
    fn what_cannot_be_meant_is_said() {
        for (parameters, said) in [
            ("sslmode=verify", "there are disable"),
            ("sslmode=verify-ca&sslrootcert=/none.pem", "sslrootcert: /none.pem"),
            ("sslcert=a.pem", "belong together"),
            ("sslcert=a.pem&sslkey=/none.pem", "sslkey: the file"),
            ("nothing=1", "nothing"),
        ] {
            let error =
                DatabaseAddress::read(&format!("postgres://host/base?{parameters}")).err().unwrap();
            assert!(error.to_string().contains(said), "{parameters}: {error}");
        }
    }
}
