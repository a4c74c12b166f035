//! Keys and passwords in the settings of a mail server. Secret values are printed as `***`.

use std::fmt;

use hark_codec::hex;
#[cfg(feature = "devp2p")]
use hark_codec::whisper::message::{SymmetricKey, password_key};
use hark_codec::whisper::{PublicKey, SecretKey};

use crate::config::setting_type::{SettingType, quoted, texts, wanted};
use crate::config::value::TypedValue;

/// The password of Status' mail servers, which everybody knows.
const PUBLIC_PASSWORD: &str = "status-offline-inbox";
/// The text printed in place of a secret.
const HIDDEN: &str = "***";

/// The password with which clients encrypt their requests. Empty for no password.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct RequestPassword(String);

impl Default for RequestPassword {
    fn default() -> Self {
        Self(PUBLIC_PASSWORD.into())
    }
}

impl RequestPassword {
    /// Derives the key from the password, in about 20 ms. Returns `None` without a password.
    #[cfg(feature = "devp2p")]
    pub(super) fn key(&self) -> Option<SymmetricKey> {
        (!self.0.is_empty()).then(|| password_key(self.0.as_bytes()))
    }
}

impl fmt::Debug for RequestPassword {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.show())
    }
}

impl SettingType for RequestPassword {
    fn read(value: &TypedValue) -> Result<Self, String> {
        String::read(value).map(Self)
    }

    fn show(&self) -> String {
        let is_known = self.0.is_empty() || self.0 == PUBLIC_PASSWORD;
        quoted(if is_known { &self.0 } else { HIDDEN })
    }
}

/// The mail server's secret key. Clients may encrypt their requests for its public key.
#[derive(Clone)]
pub(crate) struct RequestKey(pub(super) SecretKey);

impl PartialEq for RequestKey {
    fn eq(&self, other: &Self) -> bool {
        self.0.bytes() == other.0.bytes()
    }
}

impl fmt::Debug for RequestKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(HIDDEN)
    }
}

/// Empty text stands for none.
impl SettingType for Option<RequestKey> {
    fn read(value: &TypedValue) -> Result<Self, String> {
        let text = String::read(value)?;
        let digits = text.trim().trim_start_matches("0x").to_ascii_lowercase();
        if digits.is_empty() {
            return Ok(None);
        }
        let key = hex::decode_32(digits.as_bytes()).and_then(SecretKey::new);
        // The error does not repeat the text, which may be a mistyped key.
        let fault = || "is no key; it must be 64 hex digits".to_owned();
        key.map(|key| Some(RequestKey(key))).ok_or_else(fault)
    }

    fn show(&self) -> String {
        quoted(if self.is_some() { HIDDEN } else { "" })
    }
}

/// A trusted node, identified by its public key.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TrustedNode(pub(super) PublicKey);

impl TrustedNode {
    /// Reads an enode URL, or the key alone.
    fn parse(text: &str) -> Option<Self> {
        let id = text.trim().trim_start_matches("enode://");
        let id = id.split('@').next().unwrap_or_default().to_ascii_lowercase();
        let mut bytes = Vec::new();
        let is_hex = hex::decode_into(id.as_bytes(), &mut bytes);
        let bytes = bytes.try_into().ok().filter(|_| is_hex)?;
        PublicKey::read(&bytes).map(Self)
    }
}

impl SettingType for Vec<TrustedNode> {
    fn read(value: &TypedValue) -> Result<Self, String> {
        let Some(texts) = texts(value) else {
            return wanted("a list of nodes like [\"enode://1a2b…@192.0.2.1:30303\"]", value);
        };
        let read = |text: &String| {
            let fault = || {
                format!(
                    "has {text:?}, which is no node: that is enode://, 128 hex digits of its public \
                     key, @ and its address"
                )
            };
            TrustedNode::parse(text).ok_or_else(fault)
        };
        texts.iter().map(read).collect()
    }

    fn show(&self) -> String {
        let digits = |node: &TrustedNode| {
            let mut digits = Vec::new();
            hex::encode_into(&node.0.bytes(), &mut digits);
            quoted(&String::from_utf8_lossy(&digits))
        };
        format!("[{}]", self.iter().map(digits).collect::<Vec<_>>().join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_not_printed_and_changes_of_them_are_seen() {
        let text = |text: &str| TypedValue::Text(text.into());
        let password = |of: &str| RequestPassword::read(&text(of)).unwrap();
        assert_eq!(RequestPassword::default().show(), "\"status-offline-inbox\"");
        assert_eq!(
            (password("").show(), password("mine").show()),
            ("\"\"".into(), "\"***\"".into())
        );
        assert!(password("mine") != password("yours"));
        assert!(!format!("{:?}", password("mine")).contains("mine"));
        let key = |digits: &str| Option::<RequestKey>::read(&text(digits));
        let digits = "01".repeat(32);
        let read = key(&format!("0x{digits}")).unwrap();
        assert_eq!((read.show(), key("").unwrap().show()), ("\"***\"".into(), "\"\"".into()));
        assert!(read == key(&digits).unwrap() && read != key(&"02".repeat(32)).unwrap());
        assert!(!format!("{read:?}").contains("01"));
        for wrong in ["00", &"00".repeat(32), &"01".repeat(33), &"xy".repeat(32)] {
            let fault = key(wrong).unwrap_err();
            assert!(!fault.contains(wrong), "{fault}");
        }
    }

    #[test]
    fn a_node_is_a_url_or_its_key() {
        let read = |text: &str| Vec::read(&TypedValue::List(vec![TypedValue::Text(text.into())]));
        let id = SecretKey::new([7; 32]).unwrap().public();
        let mut digits = Vec::new();
        hex::encode_into(&id.bytes(), &mut digits);
        let digits = String::from_utf8(digits).unwrap();
        for text in [digits.clone(), format!("enode://{digits}@192.0.2.1:30303")] {
            let nodes: Vec<TrustedNode> = read(&text).unwrap();
            assert_eq!(
                (&nodes[..], nodes.show()),
                (&[TrustedNode(id)][..], format!("[\"{digits}\"]"))
            );
        }
        for wrong in ["", "enode://", &digits[2..], &"00".repeat(64)] {
            let fault: Result<Vec<TrustedNode>, _> = read(wrong);
            let fault = fault.unwrap_err();
            assert!(fault.contains("enode") && fault.contains(wrong), "{wrong}: {fault}");
        }
    }
}
