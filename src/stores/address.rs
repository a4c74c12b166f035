//! The addresses of stores: their forms, and an address that may contain a password.

use std::fmt;

use hark_store_postgres::shown;

/// The form of the addresses of one kind of store.
#[derive(Clone, Copy, Debug)]
pub struct AddressForm {
    /// An address of this form for messages, such as `postgres://user@host/database`.
    pub example: &'static str,
    /// Whether an address has this form.
    pub fits: fn(&str) -> bool,
    /// Checks an address of this form. Returns the fault of an address that cannot be opened.
    pub check: fn(&str) -> Result<(), String>,
}

impl AddressForm {
    /// Returns the form of an address; `None` if the address has none of these forms.
    pub(crate) fn of(forms: &[Self], address: &str) -> Option<Self> {
        forms.iter().copied().find(|form| (form.fits)(address))
    }

    /// Returns the examples of these forms as the alternatives of a sentence.
    pub(crate) fn examples(forms: &[Self]) -> String {
        let examples: Vec<&str> = forms.iter().map(|form| form.example).collect();
        examples.join(" or ")
    }
}

/// A directory, `embedded` for files in the data directory, or the address of another store. Secret
/// parts are not printed.
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
