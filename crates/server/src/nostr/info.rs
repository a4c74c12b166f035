//! The texts and names by which the relay describes itself.

/// Kinds that are private unless the configuration says otherwise: direct messages (NIP-04), gift
/// wraps and ephemeral gift wraps (NIP-59).
pub const PRIVATE_KINDS: [u32; 3] = [4, 1059, 21_059];

/// The relay's description of itself (NIP-11).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RelayInfo {
    /// The name of the relay.
    pub name: String,
    /// The purpose of the relay, in a sentence or two.
    pub description: String,
    /// The URL at which clients reach the relay: `wss://…`. Used by NIP-62 and NIP-42.
    pub url: Option<String>,
    /// Further URLs of this relay, such as an onion address. They name this relay as `url` does,
    /// and require that `url` is set.
    pub other_urls: Vec<String>,
    /// The operator's key, hex.
    pub pubkey: Option<String>,
    /// The relay's own key, hex. `None` if the relay has no key.
    pub self_key: Option<String>,
    /// Another way to reach the operator.
    pub contact: Option<String>,
    /// URL of an icon.
    pub icon: Option<String>,
    /// URL of a banner.
    pub banner: Option<String>,
    /// URL of the terms of service.
    pub terms_of_service: Option<String>,
}

impl RelayInfo {
    /// All configured URLs of this relay.
    pub fn urls(&self) -> impl Iterator<Item = String> {
        self.url.iter().chain(&self.other_urls).cloned()
    }
}
