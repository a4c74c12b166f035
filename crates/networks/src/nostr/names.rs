//! Names of keys (NIP-05): a profile claims a name, and the domain of the name publishes a document
//! that lists the keys of its names. The claim is true if the document lists the author's key.

use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;

use hark_codec::hex;
use hark_codec::record::Key;
use serde::Deserialize;
use serde_json::Value;

use crate::object::read;

/// The kind of a profile.
pub const PROFILE_KIND: u16 = 0;
/// Maximum number of bytes of the part before the `@`.
const LOCAL_BYTES_MAX: usize = 64;
/// Maximum number of bytes of a domain, and of one label of a domain (RFC 1035).
const DOMAIN_BYTES_MAX: usize = 253;
const LABEL_BYTES_MAX: usize = 63;

/// A name such as `bob@example.com`, in lowercase.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct InternetName {
    local: Box<str>,
    domain: Box<str>,
}

/// The text is no name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a name is LOCAL@DOMAIN: a-z, 0-9, `-`, `_` and `.` before the `@`, and a domain after it")]
pub struct InternetNameFault;

/// Why a domain's document cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum NameDocumentFault {
    /// The document is no JSON object with the field `names`.
    #[error("the document is not of the form of NIP-05: {0}")]
    Form(#[from] serde_json::Error),
    /// The document lists a value that is no key.
    #[error("the document lists a value that is no key of 64 lowercase hex digits")]
    NoKey,
}

impl InternetName {
    /// The part before the `@`. `_` stands for the domain itself.
    pub fn local(&self) -> &str {
        &self.local
    }

    /// The domain that lists the key.
    pub fn domain(&self) -> &str {
        &self.domain
    }

    /// The path and query at which the domain publishes its document. No character needs an escape.
    pub fn path(&self) -> String {
        format!("/.well-known/nostr.json?name={}", self.local)
    }

    /// Reads the name that the content of a profile claims. `None` if the profile claims no name.
    pub fn of_profile(content: &str) -> Option<Self> {
        #[derive(Deserialize)]
        struct ProfileFields {
            nip05: Option<Value>,
        }
        let fields: ProfileFields = read(content.as_bytes()).ok()?;
        fields.nip05?.as_str()?.parse().ok()
    }
}

impl FromStr for InternetName {
    type Err = InternetNameFault;

    fn from_str(text: &str) -> Result<Self, InternetNameFault> {
        let text = text.trim().to_ascii_lowercase();
        let (local, domain) = text.split_once('@').ok_or(InternetNameFault)?;
        let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        let is_local = (1..=LOCAL_BYTES_MAX).contains(&local.len()) && local.bytes().all(is_letter);
        if !is_local || !is_domain(domain) {
            return Err(InternetNameFault);
        }
        Ok(Self { local: local.into(), domain: domain.into() })
    }
}

impl fmt::Display for InternetName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.local, self.domain)
    }
}

/// Whether a lowercase text is a domain of the internet. The last label begins with a letter, which
/// excludes every form of an IP address.
pub fn is_domain(text: &str) -> bool {
    let is_letter = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let is_label = |label: &str| {
        (1..=LABEL_BYTES_MAX).contains(&label.len())
            && label.bytes().all(is_letter)
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    text.len() <= DOMAIN_BYTES_MAX
        && text.split('.').all(is_label)
        && text.rsplit_once('.').is_some_and(|(_, last)| last.starts_with(char::is_alphabetic))
}

/// Returns the key that a domain's document lists for the part of a name before the `@`. `None` if
/// the document does not list this part.
pub fn listed_key(document: &[u8], local: &str) -> Result<Option<Key>, NameDocumentFault> {
    #[derive(Deserialize)]
    struct NamesDocument {
        names: HashMap<String, Value>,
    }
    let document: NamesDocument = read(document)?;
    let Some(listed) = document.names.get(local) else { return Ok(None) };
    let key = listed.as_str().and_then(|digits| hex::decode_32(digits.as_bytes()));
    key.map(Some).ok_or(NameDocumentFault::NoKey)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_in_the_characters_of_the_nip() {
        for (text, name) in [
            ("bob@example.com", "bob@example.com"),
            ("_@example.com", "_@example.com"),
            (" Bob.-_9@EXAMPLE.co.UK ", "bob.-_9@example.co.uk"),
            ("a@xn--bcher-kva.example", "a@xn--bcher-kva.example"),
            ("a@1-2.x2", "a@1-2.x2"),
        ] {
            assert_eq!(text.parse::<InternetName>().map(|name| name.to_string()), Ok(name.into()));
        }
        let long = format!("{}@example.com", "a".repeat(65));
        let long_label = format!("a@{}.com", "a".repeat(64));
        let long_domain = format!("a@{}com", "abcdefg.".repeat(32));
        for wrong in [
            "",
            "bob",
            "example.com",
            "@example.com",
            "bob@",
            "bob@example",
            "bob@localhost",
            "bob@example.com.",
            "bob@.com",
            "bob@a..com",
            "bob@-a.com",
            "bob@a-.com",
            "bob@a_b.com",
            "b b@example.com",
            "b/b@example.com",
            "b%20@example.com",
            "b&c=d@example.com",
            "bücher@example.com",
            "bob@bücher.example",
            "bob@example.com:8080",
            "bob@example.com/path",
            "bob@user@example.com",
            "bob@127.0.0.1",
            "bob@127.1",
            "bob@1.0x7f",
            "bob@[::1]",
            "bob@example.com\r\nHost: x",
            &long,
            &long_label,
            &long_domain,
        ] {
            assert_eq!(wrong.parse::<InternetName>(), Err(InternetNameFault), "{wrong}");
        }
        let name: InternetName = "_@Example.com".parse().unwrap();
        assert_eq!(name.path(), "/.well-known/nostr.json?name=_");
        assert_eq!((name.local(), name.domain()), ("_", "example.com"));
    }

    #[test]
    fn a_profile_claims_a_name_or_none() {
        let claimed = |content: &str| InternetName::of_profile(content).map(|it| it.to_string());
        let profile = r#"{"name":"bob","nip05":"Bob@example.com","nip05valid":true}"#;
        assert_eq!(claimed(profile).as_deref(), Some("bob@example.com"));
        for none in [
            "",
            "hi",
            "{}",
            "[\"bob@example.com\"]",
            r#"{"nip05":null}"#,
            r#"{"nip05":""}"#,
            r#"{"nip05":7}"#,
            r#"{"nip05":["bob@example.com"]}"#,
            r#"{"nip05":"bob"}"#,
            r#"{"nip05":"bob@example.com"}{"#,
            r#"{"nip05":"bob@example.com","nip05":"eve@example.com"}"#,
        ] {
            assert_eq!(claimed(none), None, "{none}");
        }
    }

    #[test]
    fn a_document_lists_keys_in_lowercase_hex() {
        let (one, two) = ("01".repeat(32), "02".repeat(32));
        let document = format!(
            r#"{{"names":{{"bob":"{one}","_":"{two}","odd":7,"upper":"{}","short":"ab"}},
                "relays":{{"{one}":["wss://relay.example"]}}}}"#,
            "AB".repeat(32)
        );
        let listed = |local: &str| listed_key(document.as_bytes(), local);
        assert_eq!(listed("bob").unwrap(), Some([1; 32]));
        assert_eq!(listed("_").unwrap(), Some([2; 32]));
        assert_eq!(listed("eve").unwrap(), None);
        for local in ["odd", "upper", "short"] {
            assert!(matches!(listed(local), Err(NameDocumentFault::NoKey)), "{local}");
        }
        let deep = format!("{{\"names\":{{\"bob\":{}", "[".repeat(10_000));
        for wrong in [
            "",
            "{}",
            "null",
            "[{}]",
            r#"{"names":[]}"#,
            r#"{"names":{}"#,
            r#"{"names":{}}x"#,
            &deep,
        ] {
            let listed = listed_key(wrong.as_bytes(), "bob");
            assert!(matches!(listed, Err(NameDocumentFault::Form(_))), "{wrong:.40}");
        }
        assert!(listed_key(b"{\"names\":{\"\xff\":1}}", "bob").is_err());
    }
}
