//! The address of a store, which may contain a password.

use std::fmt;

use hark_store_postgres::shown;

/// A directory, `embedded` for files in the data directory, or the URL of a database. Secret parts
/// are not printed.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct StoreAddress(String);

impl StoreAddress {
    pub(crate) fn new(text: String) -> Self {
        Self(text)
    }

    /// The whole address with its password, for connecting.
    pub(crate) fn secret(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for StoreAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&shown(&self.0))
    }
}

impl fmt::Debug for StoreAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", shown(&self.0))
    }
}
