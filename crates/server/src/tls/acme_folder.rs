//! The folder with the account's key and the certificate that an authority has issued. A process
//! that takes over, or a restarted server, continues to use both.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use hark_codec::crypto::sha256;
use hark_codec::hex;
use parking_lot::Mutex;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls_acme::{AccountCache, CertCache};

use super::{AcmeOptions, PresentedCertificate, TlsError};
use crate::blocking;

/// The files of one account and one certificate. A change of the domains, of the contact or of the
/// authority leads to other files.
#[derive(Clone, Debug)]
pub(super) struct AcmeFolder {
    folder: PathBuf,
    certificate: PathBuf,
    account: PathBuf,
    /// The time at which the certificate in force expires, in seconds since 1970. 0 without a
    /// certificate.
    expires_s: Arc<AtomicU64>,
    /// The certificate and its key, if their file could not be written.
    unwritten: Arc<Mutex<Option<Vec<u8>>>>,
}

impl AcmeFolder {
    pub(super) fn new(options: &AcmeOptions) -> Self {
        let AcmeOptions { domains, contact, directory, folder } = options;
        let file = |name: &str, parts: &[&str]| {
            let id = sha256(parts.join("\n").as_bytes());
            let id = hex::encode_32(&id);
            folder.join(format!("{name}-{}", String::from_utf8_lossy(&id[..16])))
        };
        let of_certificate: Vec<_> =
            domains.iter().map(String::as_str).chain([directory.as_str()]).collect();
        Self {
            folder: folder.clone(),
            certificate: file("certificate", &of_certificate),
            account: file("account", &[contact.as_deref().unwrap_or_default(), directory]),
            expires_s: Arc::default(),
            unwritten: Arc::default(),
        }
    }

    /// Creates the folder, which only its owner can read, if it is missing.
    pub(super) fn create(&self) -> Result<(), TlsError> {
        let created = DirBuilder::new().recursive(true).mode(0o700).create(&self.folder);
        created.map_err(|cause| TlsError::Unreadable { file: self.folder.clone(), cause })
    }

    /// The certificate that was issued last. `None` if no certificate was issued.
    pub(super) fn issued(&self) -> Result<Option<PresentedCertificate>, TlsError> {
        let unreadable = |cause| TlsError::Unreadable { file: self.certificate.clone(), cause };
        let Some(text) = self.text().map_err(unreadable)? else { return Ok(None) };
        presented(&text).map(Some).ok_or_else(|| TlsError::NoCertificate(self.certificate.clone()))
    }

    /// The certificate that was issued last, with its key, in PEM.
    fn text(&self) -> io::Result<Option<Vec<u8>>> {
        let unwritten = self.unwritten.lock().clone();
        unwritten.map_or_else(|| read(&self.certificate), |text| Ok(Some(text)))
    }

    /// The time at which the certificate in force expires, in seconds since 1970. 0 without a
    /// certificate.
    pub(super) fn expires_s(&self) -> u64 {
        self.expires_s.load(Ordering::Relaxed)
    }

    /// Records that a certificate is in force.
    pub(super) fn put_in_force(&self, certificate: &PresentedCertificate) {
        self.expires_s.store(certificate.expires_s(), Ordering::Relaxed);
    }
}

fn presented(text: &[u8]) -> Option<PresentedCertificate> {
    let leaf = CertificateDer::from_pem_slice(text).ok();
    leaf.as_ref().and_then(PresentedCertificate::of)
}

#[async_trait]
impl CertCache for AcmeFolder {
    type EC = io::Error;

    async fn load_cert(&self, _: &[String], _: &str) -> io::Result<Option<Vec<u8>>> {
        let folder = self.clone();
        on_a_thread(move || folder.text()).await
    }

    async fn store_cert(&self, _: &[String], _: &str, text: &[u8]) -> io::Result<()> {
        if let Some(certificate) = presented(text) {
            self.put_in_force(&certificate);
        }
        let written = write_file(self.certificate.clone(), text.to_vec()).await;
        *self.unwritten.lock() = written.is_err().then(|| text.to_vec());
        written
    }
}

#[async_trait]
impl AccountCache for AcmeFolder {
    type EA = io::Error;

    async fn load_account(&self, _: &[String], _: &str) -> io::Result<Option<Vec<u8>>> {
        let account = self.account.clone();
        on_a_thread(move || read(&account)).await
    }

    async fn store_account(&self, _: &[String], _: &str, key: &[u8]) -> io::Result<()> {
        write_file(self.account.clone(), key.to_vec()).await
    }
}

async fn write_file(path: PathBuf, bytes: Vec<u8>) -> io::Result<()> {
    on_a_thread(move || write(&path, &bytes)).await
}

async fn on_a_thread<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    blocking::run(work).await.unwrap_or_else(|panic| Err(io::Error::other(panic)))
}

/// Reads a file; `None` if the file does not exist.
fn read(path: &Path) -> io::Result<Option<Vec<u8>>> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Replaces a file by a file that only its owner can read.
fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let unfinished = path.with_extension("unfinished");
    let mut options = File::options();
    options.write(true).create(true).truncate(true).mode(0o600);
    let mut file = options.open(&unfinished)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(unfinished, path)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use hark_testkit::disk::scratch;

    use super::*;

    #[tokio::test]
    async fn files_are_for_their_owner_and_of_their_domains() {
        let folder = scratch("acme");
        let options = AcmeOptions {
            domains: vec!["relay.example".into()],
            contact: None,
            directory: "https://authority.example".into(),
            folder: folder.join("acme"),
        };
        let files = AcmeFolder::new(&options);
        files.create().unwrap();
        files.create().unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&options.folder), 0o700);
        assert_eq!(files.load_account(&[], "").await.unwrap(), None);
        files.store_account(&[], "", b"one").await.unwrap();
        files.store_account(&[], "", b"two").await.unwrap();
        assert_eq!(files.load_account(&[], "").await.unwrap().unwrap(), b"two");
        assert_eq!(mode(&files.account), 0o600);
        assert!(files.issued().unwrap().is_none());
        // A certificate whose file cannot be written is still available.
        fs::create_dir(&files.certificate).unwrap();
        assert!(files.store_cert(&[], "", b"a certificate").await.is_err());
        assert_eq!(files.load_cert(&[], "").await.unwrap().unwrap(), b"a certificate");
        fs::remove_dir(&files.certificate).unwrap();
        files.store_cert(&[], "", b"a newer one").await.unwrap();
        assert_eq!(fs::read(&files.certificate).unwrap(), b"a newer one");
        assert_eq!(files.load_cert(&[], "").await.unwrap().unwrap(), b"a newer one");
        let other = AcmeFolder::new(&AcmeOptions { domains: Vec::new(), ..options });
        assert_ne!(files.certificate, other.certificate);
        assert_eq!(files.account, other.account);
        fs::remove_dir_all(folder).unwrap();
    }
}
