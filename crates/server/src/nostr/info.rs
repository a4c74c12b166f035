//! The texts and names by which the relay describes itself.

/// Kinds that are private unless the configuration says otherwise: direct messages (NIP-04), gift
/// wraps and ephemeral gift wraps (NIP-59).
pub const PRIVATE_KINDS: [u32; 3] = [4, 1059, 21_059];

/// The relay's description of itself (NIP-11).
#[derive(Clone, Debug, PartialEq, Eq)]
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
    /// URL at which a web client opens the relay, with `{url}` or `{host}` for the relay's URL or
    /// for the URL without its scheme. `None`: the page has no such link.
    pub client_url: Option<String>,
    /// How a visitor becomes a member, for the page.
    pub joining: Option<String>,
    /// The terms of service as a text, for the page.
    pub terms: Option<String>,
    /// A text about privacy, for the page.
    pub privacy: Option<String>,
}

/// The default of [`RelayInfo::client_url`].
const CLIENT_URL: &str = "https://njump.me/r/{host}";

impl Default for RelayInfo {
    fn default() -> Self {
        Self {
            name: String::default(),
            description: String::default(),
            url: None,
            other_urls: Vec::new(),
            pubkey: None,
            self_key: None,
            contact: None,
            icon: None,
            banner: None,
            terms_of_service: None,
            payments_url: None,
            fees: Vec::new(),
            client_url: Some(CLIENT_URL.into()),
            joining: None,
            terms: None,
            privacy: None,
        }
    }
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
    /// URL of the terms of service: the configured URL, or the terms on the relay's page.
    pub(crate) fn terms_url(&self) -> Option<String> {
        let of_page =
            || Some(format!("{}/#terms", web_url(self.terms.as_ref().and(self.url.as_deref())?)));
        self.terms_of_service.clone().or_else(of_page)
    }

    /// All configured URLs of this relay.
    pub fn urls(&self) -> impl Iterator<Item = String> {
        self.url.iter().chain(&self.other_urls).cloned()
    }
}

/// Returns the URL of the page for people, without a slash at its end, from a URL of the relay. An
/// address that stands for all addresses of the machine becomes an address of the machine itself.
pub(crate) fn web_url(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or(("ws", url));
    let is_secure = ["wss", "https"].iter().any(|secure| scheme.eq_ignore_ascii_case(secure));
    let scheme = if is_secure { "https" } else { "http" };
    let rest = rest.trim_end_matches('/');
    let rest = match rest.strip_prefix("0.0.0.0:") {
        Some(port) => format!("127.0.0.1:{port}"),
        None => rest.strip_prefix("[::]:").map_or(rest.to_owned(), |port| format!("[::1]:{port}")),
    };
    format!("{scheme}://{rest}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_the_url_of_the_relay_with_the_scheme_of_browsers() {
        for (url, page) in [
            ("wss://relay.example", "https://relay.example"),
            ("WSS://relay.example/chat/", "https://relay.example/chat"),
            ("ws://0.0.0.0:7777", "http://127.0.0.1:7777"),
            ("http://[::]:7777", "http://[::1]:7777"),
            ("https://10.0.0.0:1", "https://10.0.0.0:1"),
        ] {
            assert_eq!(web_url(url), page, "{url}");
        }
        let (url, terms) = (Some("wss://relay.example".into()), Some("Be kind.".into()));
        let mut info = RelayInfo { url, terms, ..RelayInfo::default() };
        assert_eq!(info.terms_url().as_deref(), Some("https://relay.example/#terms"));
        info.terms_of_service = Some("https://other.example".into());
        assert_eq!(info.terms_url().as_deref(), Some("https://other.example"));
        assert_eq!(RelayInfo { url: None, terms_of_service: None, ..info }.terms_url(), None);
    }
}
