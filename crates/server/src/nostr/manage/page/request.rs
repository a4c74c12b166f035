//! A request to the page, with its client and its place below the relay's URL.

use std::sync::Arc;

use crate::admin::http::Operators;
use crate::nostr::Relay;
use crate::nostr::manage::door::ManageClient;

/// A request to the page.
pub(crate) struct AdminRequest<'a> {
    pub(crate) relay: &'a Arc<Relay>,
    pub(crate) operators: &'a Operators,
    pub(crate) client: ManageClient<'a>,
    /// The path of the relay's URL, without a slash at its end.
    pub(crate) prefix: &'a str,
    /// The path of the request below `prefix`.
    pub(crate) path: &'a str,
    /// Whether the connection, or the connection to the proxy in front, has TLS.
    pub(crate) is_secure: bool,
}
