//! TLS for the doors: the certificate, the handshakes, and the counters of failed handshakes.
//!
//! A build without the feature `tls` has the same types, but refuses to open an endpoint.

#[cfg(not(feature = "tls"))]
mod absent;
#[cfg(feature = "tls")]
mod acme;
#[cfg(feature = "tls")]
mod acme_folder;
mod authorities;
#[cfg(feature = "tls")]
mod certificate;
#[cfg(feature = "tls")]
mod client;
mod endpoint;
mod error;
#[cfg(feature = "tls")]
mod files;
#[cfg(feature = "tls")]
mod handshake;
#[cfg(any(feature = "libp2p", feature = "tls"))]
mod names;
mod options;
mod presented;

#[cfg(not(feature = "tls"))]
pub(crate) use absent::EncryptedStream;
#[cfg(not(feature = "tls"))]
pub use absent::{connect, read_certificate};
pub(crate) use authorities::client_config;
#[cfg(feature = "tls")]
pub use client::{connect, read_certificate};
pub(crate) use endpoint::TlsEndpoint;
pub use error::TlsError;
#[cfg(feature = "libp2p")]
pub(crate) use names::CertificateNames;
pub use options::{AcmeOptions, CertificatePaths, CertificateSource, TlsOptions};
pub use presented::PresentedCertificate;
#[cfg(feature = "tls")]
pub(crate) use tokio_rustls::server::TlsStream as EncryptedStream;
