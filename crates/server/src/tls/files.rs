//! The certificate in force, and the files that replace this certificate while the server runs.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;

use arc_swap::ArcSwap;
use hark_archive::clock::Clock;
use parking_lot::Mutex;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use super::certificate::{self, ReadCertificate};
use super::names::CertificateNames;
use super::{CertificatePaths, TlsError};
use crate::words::moment;

/// The files of a certificate and its key, and the certificate that was last read from these files
/// without a fault.
#[derive(Debug)]
pub(super) struct CertificateFiles {
    paths: CertificatePaths,
    in_force: ArcSwap<CertificateInForce>,
    last: Mutex<LastRead>,
}

#[derive(Debug)]
struct CertificateInForce {
    pair: Arc<CertifiedKey>,
    expires_s: u64,
    names: Arc<CertificateNames>,
}

impl From<ReadCertificate> for CertificateInForce {
    fn from(read: ReadCertificate) -> Self {
        let ReadCertificate { pair, expires_s, names } = read;
        Self { pair: Arc::new(pair), expires_s, names: Arc::new(names) }
    }
}

/// The last attempt to read the files.
#[derive(Debug, PartialEq, Eq)]
struct LastRead {
    stamps: [Option<FileStamp>; 2],
    /// The fault of the files; `None` if their certificate is in force.
    fault: Option<String>,
}

/// The state of a file. The state differs after a change of the file, or of a link to the file.
#[derive(Debug, PartialEq, Eq)]
struct FileStamp {
    modified: (i64, i64),
    changed: (i64, i64),
    inode: u64,
    size: u64,
}

impl FileStamp {
    /// The state of a file; `None` if the file cannot be found.
    fn of(file: &Path) -> Option<Self> {
        let meta = fs::metadata(file).ok()?;
        Some(Self {
            modified: (meta.mtime(), meta.mtime_nsec()),
            changed: (meta.ctime(), meta.ctime_nsec()),
            inode: meta.ino(),
            size: meta.size(),
        })
    }
}

impl CertificateFiles {
    /// Reads the files for the first time.
    pub(super) fn open(paths: &CertificatePaths) -> Result<Self, TlsError> {
        let stamps = stamps(paths);
        let in_force = CertificateInForce::from(certificate::read(paths)?);
        warn_if_expired(paths, in_force.expires_s);
        Ok(Self {
            paths: paths.clone(),
            in_force: ArcSwap::from_pointee(in_force),
            last: Mutex::new(LastRead { stamps, fault: None }),
        })
    }

    /// The time at which the certificate in force expires, in seconds since 1970.
    pub(super) fn expires_s(&self) -> u64 {
        self.in_force.load().expires_s
    }

    /// The names of the certificate in force.
    pub(super) fn names(&self) -> Arc<CertificateNames> {
        Arc::clone(&self.in_force.load().names)
    }

    /// Reads the files again if they have changed or had a fault.
    pub(super) fn read_if_changed(&self) {
        let is_same = {
            let last = self.last.lock();
            last.fault.is_none() && last.stamps == stamps(&self.paths)
        };
        if !is_same {
            // `read_again` has logged the fault.
            let _ = self.read_again();
        }
    }

    /// Reads the files again. Returns the time at which a new certificate expires, or `None` if the
    /// files have the certificate in force. Files with a fault change nothing, and each fault is
    /// logged once.
    pub(super) fn read_again(&self) -> Result<Option<u64>, TlsError> {
        let mut last = self.last.lock();
        // The states are read first, so that a change during the read is noticed later.
        let stamps = stamps(&self.paths);
        let read = match certificate::read(&self.paths) {
            Ok(read) => read,
            Err(error) => {
                let fault = error.to_string();
                if last.fault.as_ref() != Some(&fault) {
                    tracing::error!(
                        reason = fault,
                        expires = moment(self.expires_s()),
                        "the new certificate cannot be used, and the old one stays in force; correct \
                         the files in [tls], which are read again every minute"
                    );
                }
                *last = LastRead { stamps, fault: Some(fault) };
                return Err(error);
            }
        };
        *last = LastRead { stamps, fault: None };
        if self.in_force.load().pair.cert == read.pair.cert {
            return Ok(None);
        }
        let expires_s = read.expires_s;
        self.in_force.store(Arc::new(read.into()));
        tracing::info!(expires = moment(expires_s), "a new certificate is in force");
        warn_if_expired(&self.paths, expires_s);
        Ok(Some(expires_s))
    }
}

impl ResolvesServerCert for CertificateFiles {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.in_force.load().pair))
    }
}

fn stamps(paths: &CertificatePaths) -> [Option<FileStamp>; 2] {
    [FileStamp::of(&paths.certificate), FileStamp::of(&paths.key)]
}

fn warn_if_expired(paths: &CertificatePaths, expires_s: u64) {
    if expires_s <= Clock::System.now_s() {
        let (file, expired) = (paths.certificate.display(), moment(expires_s));
        tracing::warn!(
            "the certificate in {file} has expired at {expired}, so clients refuse it; renew the \
             certificate"
        );
    }
}
