//! Names of keys (NIP-05): the text of a name, the content of a profile, and the document of a domain. A
//! name that is read is read again from its text, and never changes the request or the host.

use hark_networks::nostr::names::{InternetName, listed_key};

/// Panics if a property does not hold.
pub fn check(bytes: &[u8]) {
    if let Ok(text) = std::str::from_utf8(bytes) {
        for name in text.parse().ok().into_iter().chain(InternetName::of_profile(text)) {
            let again: InternetName = name.to_string().parse().expect("it is a name");
            assert_eq!(again, name);
            assert!(name.domain().parse::<std::net::IpAddr>().is_err());
            let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
            assert!(name.local().bytes().chain(name.domain().bytes()).all(is_letter));
            assert_eq!(name.path().matches(['/', '?', '=', '&', '#', '%']).count(), 4);
        }
    }
    for local in ["_", "bob"] {
        if let Ok(Some(key)) = listed_key(bytes, local) {
            // The document has the key in lowercase digits, unless it writes them with escapes.
            let digits = hark_codec::hex::text_32(&key);
            let is_found = bytes.windows(64).any(|window| window == digits.as_bytes());
            assert!(is_found || bytes.contains(&b'\\'));
        }
    }
}
