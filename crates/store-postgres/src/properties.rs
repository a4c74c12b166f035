//! The properties of a shelf that are fixed when it is opened.

use hark_archive::effects::Rules;

use crate::terms::DatabaseTermHasher;

/// The rules of a shelf, and the properties that its options set; see
/// [`PostgresOptions`](crate::PostgresOptions).
pub(crate) struct ShelfProperties {
    pub(crate) rules: Box<dyn Rules>,
    pub(crate) terms: DatabaseTermHasher,
    pub(crate) units_per_s: u64,
    pub(crate) one_kind: bool,
    pub(crate) common_labels: &'static [u8],
    pub(crate) listed_labels: &'static [u8],
}
