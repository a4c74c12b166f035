//! The form of a database's address.

use hark_store_postgres::{DatabaseAddress, is_database};

use crate::stores::AddressForm;

/// The form of a database's address.
pub(crate) const FORM: AddressForm = AddressForm {
    example: "postgres://user@host/database",
    fits: is_database,
    check: |address| DatabaseAddress::read(address).map(drop).map_err(|fault| fault.to_string()),
};
