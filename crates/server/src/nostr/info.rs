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
    /// URL of a page for payments.
    pub payments_url: Option<String>,
    /// The fees of the relay.
    pub fees: Vec<RelayFee>,
}

/// A fee that the relay announces to clients. Hark itself collects no fees.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RelayFee {
    /// The purpose of the fee.
    pub purpose: FeePurpose,
    /// The amount, in `unit`.
    pub amount: u64,
    /// The unit of the amount, such as `msats`.
    pub unit: String,
    /// The time that the fee covers, in seconds.
    pub period_s: Option<u64>,
    /// The kinds of events that the fee is for. Empty: all kinds.
    pub kinds: Vec<u32>,
}

/// The purpose of a fee.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FeePurpose {
    /// Access to the relay, paid once.
    Admission,
    /// Access to the relay for a time.
    Subscription,
    /// An event.
    Publication,
}

impl FeePurpose {
    /// All purposes.
    pub const ALL: [Self; 3] = [Self::Admission, Self::Subscription, Self::Publication];

    /// The name of the purpose in NIP-11.
    pub fn name(self) -> &'static str {
        match self {
            Self::Admission => "admission",
            Self::Subscription => "subscription",
            Self::Publication => "publication",
        }
    }
}

impl RelayInfo {
    /// All configured URLs of this relay.
    pub fn urls(&self) -> impl Iterator<Item = String> {
        self.url.iter().chain(&self.other_urls).cloned()
    }
}
