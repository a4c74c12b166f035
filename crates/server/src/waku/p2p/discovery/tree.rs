//! The texts of a list of nodes in the DNS (EIP-1459). A list is a tree of TXT records: a signed
//! root, branches, and the records of nodes. The name of each entry is a hash of the entry.

use std::fmt;
use std::str::FromStr;

use data_encoding::BASE32_NOPAD;
use enr::EnrPublicKey as _;
use enr::k256::ecdsa::VerifyingKey;
use sha3::{Digest as _, Keccak256};

use super::record::{NodeRecord, RecordFault};

/// The beginning of a list's URL.
pub(in crate::waku::p2p) const LIST_PREFIX: &str = "enrtree://";
const ROOT_PREFIX: &str = "enrtree-root:v1 ";
const BRANCH_PREFIX: &str = "enrtree-branch:";
/// Minimum and maximum length of the hash in an entry's name, in bytes.
const HASH_BYTES: std::ops::RangeInclusive<usize> = 12..=32;
/// Maximum number of entries of a branch. Larger branches do not fit into a DNS answer.
const CHILDREN_MAX: usize = 64;

/// The URL of a list: its domain, and the key of its owner.
#[derive(Clone, PartialEq, Eq)]
pub struct NodeListUrl {
    key: VerifyingKey,
    /// The domain of the list's root.
    pub(super) domain: String,
    text: String,
}

/// Why a list, or an entry of a list, is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TreeFault {
    /// The text is no URL of a list.
    #[error("the URL of a list of nodes is enrtree://KEY@DOMAIN, with a key of 53 characters")]
    Url,
    /// The text is no root.
    #[error("{0} has no root of a list")]
    Root(String),
    /// The root is not signed by the key of the URL.
    #[error("the signature of the list's root is invalid")]
    Signature,
    /// The root is older than an earlier answer.
    #[error("the root has number {0}, but an earlier answer had {1}")]
    Older(u64, u64),
    /// The entry's name is not the hash of the entry's text.
    #[error("the entry {0} has another hash")]
    Hash(String),
    /// The entry is of no known form.
    #[error("the entry {0} has an unknown form")]
    Form(String),
    /// See [`RecordFault`].
    #[error(transparent)]
    Record(#[from] RecordFault),
}

/// The root of a list.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TreeRoot {
    /// The names of the first entry with records, and of the first entry with links.
    pub(super) entries: [String; 2],
    /// The number that grows with each new version of the list.
    pub(super) seq: u64,
}

/// An entry of a list.
#[derive(Debug)]
pub(super) enum TreeEntry {
    /// The names of further entries.
    Branch(Vec<String>),
    /// Another list.
    Link(NodeListUrl),
    /// The record of a node.
    Node(Box<NodeRecord>),
}

impl FromStr for NodeListUrl {
    type Err = TreeFault;

    fn from_str(text: &str) -> Result<Self, TreeFault> {
        let (key, domain) = text
            .strip_prefix(LIST_PREFIX)
            .and_then(|rest| rest.split_once('@'))
            .ok_or(TreeFault::Url)?;
        let key = BASE32_NOPAD.decode(key.as_bytes()).map_err(|_| TreeFault::Url)?;
        let key = VerifyingKey::from_sec1_bytes(&key).map_err(|_| TreeFault::Url)?;
        let is_letter = |letter: u8| letter.is_ascii_alphanumeric() || b"-_.".contains(&letter);
        let is_domain = (1..=200).contains(&domain.len()) && domain.bytes().all(is_letter);
        if !is_domain {
            return Err(TreeFault::Url);
        }
        let domain = domain.trim_end_matches('.').to_ascii_lowercase();
        Ok(Self { key, domain, text: text.into() })
    }
}

impl fmt::Display for NodeListUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for NodeListUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl NodeListUrl {
    /// Reads the root of the list, and checks its signature.
    pub(super) fn read_root(&self, text: &str) -> Result<TreeRoot, TreeFault> {
        let is_no_root = || TreeFault::Root(self.domain.clone());
        let (signed, signature) = text.split_once(" sig=").ok_or_else(is_no_root)?;
        let fields = signed.strip_prefix(ROOT_PREFIX).ok_or_else(is_no_root)?;
        let mut fields = fields.split(' ');
        let mut field = |name: &str| {
            let value = fields.next().and_then(|field| field.strip_prefix(name));
            value.map(str::to_owned).ok_or_else(is_no_root)
        };
        let entries = [field("e=")?, field("l=")?];
        let seq = field("seq=")?.parse().map_err(|_| is_no_root())?;
        let signature = base64_simd::URL_SAFE_NO_PAD
            .decode_to_vec(signature.trim_end_matches('='))
            .map_err(|_| TreeFault::Signature)?;
        // The last byte only serves to recover the key, and the key is known.
        let signature = signature.get(..64).ok_or(TreeFault::Signature)?;
        let is_valid = self.key.verify_v4(signed.as_bytes(), signature);
        if is_valid { Ok(TreeRoot { entries, seq }) } else { Err(TreeFault::Signature) }
    }
}

/// Reads an entry, and checks that `name` is its hash.
pub(super) fn read_entry(name: &str, text: &str) -> Result<TreeEntry, TreeFault> {
    let hash = BASE32_NOPAD.decode(name.to_ascii_uppercase().as_bytes());
    let is_hash = |hash: &Vec<u8>| {
        HASH_BYTES.contains(&hash.len()) && Keccak256::digest(text.as_bytes()).starts_with(hash)
    };
    if !hash.as_ref().is_ok_and(is_hash) {
        return Err(TreeFault::Hash(name.into()));
    }
    if let Some(children) = text.strip_prefix(BRANCH_PREFIX) {
        let children = children.split(',').filter(|child| !child.is_empty());
        return Ok(TreeEntry::Branch(children.take(CHILDREN_MAX).map(str::to_owned).collect()));
    }
    if text.starts_with(LIST_PREFIX) {
        return text.parse().map(TreeEntry::Link);
    }
    if text.starts_with(super::record::RECORD_PREFIX) {
        return Ok(TreeEntry::Node(Box::new(NodeRecord::parse(text)?)));
    }
    Err(TreeFault::Form(name.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of EIP-1459: the URL, the root and its entries.
    const URL: &str =
        "enrtree://AM5FCQLWIZX2QFPNJAP7VUERCCRNGRHWZG3YYHIUV7BVDQ5FDPRT2@nodes.example.org";
    const ROOT: &str = "enrtree-root:v1 e=JWXYDBPXYWG6FX3GMDIBFA6CJ4 l=C7HRFPF3BLGF3YR4DY5KX3SMBE \
                        seq=1 sig=o908WmNp7LibOfPsr4btQwatZJ5URBr2ZAuxvK4UWHlsB9sUOTJQaGAlLPVAhM__\
                        XJesCHxLISo94z5Z2a463gA";
    const ENTRIES: [(&str, &str); 3] = [
        (
            "C7HRFPF3BLGF3YR4DY5KX3SMBE",
            "enrtree://AM5FCQLWIZX2QFPNJAP7VUERCCRNGRHWZG3YYHIUV7BVDQ5FDPRT2@morenodes.example.org",
        ),
        (
            "JWXYDBPXYWG6FX3GMDIBFA6CJ4",
            "enrtree-branch:2XS2367YHAXJFGLZHVAWLQD4ZY,H4FHT4B454P6UXFD7JCYQ5PWDY,\
             MHTDO6TMUBRIA2XWG5LUDACK24",
        ),
        (
            "2XS2367YHAXJFGLZHVAWLQD4ZY",
            "enr:-HW4QOFzoVLaFJnNhbgMoDXPnOvcdVuj7pDpqRvh6BRDO68aVi5ZcjB3vzQRZH2IcLBGHzo8uUN3snqmgTiE\
             56CH3AMBgmlkgnY0iXNlY3AyNTZrMaECC2_24YYkYHEgdzxlSNKQEnHhuNAbNlMlWJxrJxbAFvA",
        ),
    ];

    #[test]
    fn the_texts_of_a_list_are_read_and_checked() {
        let url: NodeListUrl = URL.parse().unwrap();
        assert_eq!(url.domain, "nodes.example.org");
        // The example of the EIP is signed by a key that the EIP does not name.
        assert_eq!(url.read_root(ROOT), Err(TreeFault::Signature));
        let made = sample_root();
        let root = made.0.read_root(&made.1).unwrap();
        assert_eq!((root.seq, root.entries[0].len()), (7, 26));
        for (from, to) in [("seq=7", "seq=8"), ("e=", "e=A"), (" sig=", " sig=A"), ("v1", "v2")] {
            assert!(made.0.read_root(&made.1.replacen(from, to, 1)).is_err(), "{from}");
        }
        // Another key.
        assert_eq!(url.read_root(&made.1), Err(TreeFault::Signature));
        assert!(url.read_root("enrtree-root:v1 e=A l=B").is_err());
        for wrong in ["enrtree://A@b", "enr:x", "enrtree://@b", &URL.replace('@', "@ä")] {
            assert!(wrong.parse::<NodeListUrl>().is_err(), "{wrong}");
        }
    }

    /// Returns a list's URL and a root that the key of the URL has signed.
    fn sample_root() -> (NodeListUrl, String) {
        use enr::EnrKey as _;
        let key = enr::k256::ecdsa::SigningKey::from_slice(&[7; 32]).unwrap();
        let public = BASE32_NOPAD.encode(&key.public().encode());
        let url = format!("enrtree://{public}@nodes.example").parse().unwrap();
        let signed =
            "enrtree-root:v1 e=QFT4PBCRX4XQCV3VUYJ6BTCEPU l=JGUFMSAGI7KZYB3P7IZW4S5Y3A seq=7";
        let mut signature = key.sign_v4(signed.as_bytes()).unwrap();
        signature.push(0);
        let signature = base64_simd::URL_SAFE_NO_PAD.encode_to_string(signature);
        (url, format!("{signed} sig={signature}"))
    }

    #[test]
    fn an_entry_has_the_hash_that_is_its_name() {
        for text in ["enrtree-branch:A,B", "enrtree-branch:", URL, "enr:x", "other"] {
            let name = BASE32_NOPAD.encode(&Keccak256::digest(text.as_bytes())[..16]);
            let read = read_entry(&name, text);
            match (text, &read) {
                ("enrtree-branch:A,B", Ok(TreeEntry::Branch(children))) => {
                    assert_eq!(children, &["A", "B"]);
                }
                ("enrtree-branch:", Ok(TreeEntry::Branch(children))) => {
                    assert!(children.is_empty());
                }
                (URL, Ok(TreeEntry::Link(url))) => assert_eq!(url.to_string(), URL),
                ("enr:x", Err(TreeFault::Record(_))) | ("other", Err(TreeFault::Form(_))) => {}
                other => panic!("{other:?}"),
            }
            assert!(matches!(read_entry(&name, "enrtree-branch:C"), Err(TreeFault::Hash(_))));
            assert!(matches!(read_entry(&name[..8], text), Err(TreeFault::Hash(_))));
            assert!(!matches!(read_entry(&name.to_lowercase(), text), Err(TreeFault::Hash(_))));
        }
        for (name, text) in ENTRIES {
            let read = read_entry(name, text);
            assert!(read.is_ok(), "{name}: {read:?}");
        }
    }
}
