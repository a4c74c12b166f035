//! The certificate that clients get from a server.

/// The certificate that clients get from a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PresentedCertificate {
    /// The certificate itself, in DER.
    pub(super) der: Vec<u8>,
    /// The time at which the certificate expires, in seconds since 1970.
    pub(super) expires_s: u64,
}

impl PresentedCertificate {
    /// The time at which the certificate expires, in seconds since 1970.
    pub fn expires_s(&self) -> u64 {
        self.expires_s
    }
}
