//! The subjects of rulings: keys, ids, kinds, words, and addresses, in the forms that people type.

use std::fmt;
use std::str::FromStr;

use hark_codec::hex;
use hark_codec::nostr::npub;
use hark_codec::record::{Id, Key};
use ipnet::IpNet;

use crate::ranges;

/// Maximum number of bytes of a word.
const WORD_BYTES_MAX: usize = 200;

/// The kind of decision about a subject.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Ruling {
    /// The subject is refused.
    Ban,
    /// The subject is accepted in addition to the allow lists of `[policy]`.
    Allow,
}

impl Ruling {
    /// All rulings, in the order of the lists that commands print.
    pub const ALL: [Self; 2] = [Self::Ban, Self::Allow];

    /// The name of the ruling in commands and in stored records.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ban => "ban",
            Self::Allow => "allow",
        }
    }

    /// The name of the act that lifts the ruling.
    pub fn lifting_name(self) -> &'static str {
        match self {
            Self::Ban => "unban",
            Self::Allow => "unallow",
        }
    }

    /// Returns the ruling with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|ruling| ruling.name() == name)
    }
}

/// The sort of a subject.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SubjectSort {
    /// Public keys of authors.
    Key,
    /// Ids of events.
    Id,
    /// Kinds of events.
    Kind,
    /// Words in events.
    Word,
    /// Addresses and networks of clients.
    Addresses,
}

impl SubjectSort {
    /// All sorts, in the order of the lists that commands print.
    pub const ALL: [Self; 5] = [Self::Key, Self::Id, Self::Kind, Self::Word, Self::Addresses];

    /// The name of the sort, which is the prefix of its subjects.
    pub fn name(self) -> &'static str {
        match self {
            Self::Key => "key",
            Self::Id => "id",
            Self::Kind => "kind",
            Self::Word => "word",
            Self::Addresses => "addresses",
        }
    }

    /// Returns the sort with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|sort| sort.name() == name)
    }
}

/// A subject: all events or clients that a ruling concerns.
///
/// `Display` writes the unambiguous form, such as `key:7e7e…`, and [`FromStr`] also reads the other
/// forms that people exchange.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RulingSubject {
    /// The events of an author, and connections that have proved this key.
    Key(Key),
    /// One event.
    Id(Id),
    /// The events of a kind.
    Kind(u16),
    /// The events with a word, in the form of `[policy] deny_words`.
    Word(String),
    /// The clients at these addresses.
    Addresses(IpNet),
}

/// Why a text names no subject.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubjectError {
    /// The text has none of the forms.
    #[error(
        "{0:?} is no subject: give a key (npub1… or 64 hex digits), an id (note1…, nevent1… or \
         id:HEX), kind:NUMBER, word:TEXT, an address, or a network like 192.0.2.0/24 (with all further \
         bits 0)"
    )]
    Form(String),
    /// The text is the beginning of a form, and the remainder is wrong.
    #[error("{text:?} is no {sort}{advice}", sort = .sort.name())]
    Value {
        /// The sort that the text names.
        sort: SubjectSort,
        /// The text.
        text: String,
        /// The form that is expected, after a colon; empty if the sort has an obvious form.
        advice: &'static str,
    },
}

impl RulingSubject {
    /// The sort of the subject.
    pub fn sort(&self) -> SubjectSort {
        match self {
            Self::Key(_) => SubjectSort::Key,
            Self::Id(_) => SubjectSort::Id,
            Self::Kind(_) => SubjectSort::Kind,
            Self::Word(_) => SubjectSort::Word,
            Self::Addresses(_) => SubjectSort::Addresses,
        }
    }

    /// Returns the form that people read: `npub1…` for a key, and an address without its sort.
    pub fn shown(&self) -> String {
        match self {
            Self::Key(key) => npub::encode(key),
            Self::Addresses(range) => shown_range(range),
            other => other.to_string(),
        }
    }

    /// Reads a word. Returns `None` if the word has no letter, or is too long.
    pub fn word(text: &str) -> Option<Self> {
        let word = text.trim().to_lowercase();
        let has_content = !word.trim_matches('*').trim().is_empty();
        let is_line = !word.contains(char::is_control);
        (has_content && is_line && word.len() <= WORD_BYTES_MAX).then_some(Self::Word(word))
    }

    /// Returns the subject of a range of addresses. IPv4-mapped IPv6 addresses become IPv4
    /// addresses, as a client's address does.
    pub fn addresses(range: IpNet) -> Self {
        let range = range.trunc();
        let mapped = match range {
            IpNet::V6(six) if six.prefix_len() >= 96 => six
                .addr()
                .to_ipv4_mapped()
                .and_then(|four| IpNet::new(four.into(), six.prefix_len() - 96).ok()),
            _ => None,
        };
        Self::Addresses(mapped.unwrap_or(range))
    }

    fn of_sort(sort: SubjectSort, text: &str) -> Result<Self, SubjectError> {
        let wrong = |advice| SubjectError::Value { sort, text: text.into(), advice };
        let text = text.trim();
        match sort {
            SubjectSort::Key => {
                read_key(text).map(Self::Key).ok_or_else(|| wrong(": npub1… or 64 hex digits"))
            }
            SubjectSort::Id => read_id(text)
                .map(Self::Id)
                .ok_or_else(|| wrong(": note1…, nevent1… or 64 hex digits")),
            SubjectSort::Kind => {
                text.parse().map(Self::Kind).map_err(|_| wrong(": a number from 0 to 65535"))
            }
            SubjectSort::Word => Self::word(text)
                .ok_or_else(|| wrong(": it needs a letter, and has at most 200 bytes on one line")),
            SubjectSort::Addresses => {
                ranges::read(text).map(Self::addresses).map_err(|_| wrong(""))
            }
        }
    }
}

/// Returns a range as people type it: an address alone if the range has one address.
fn shown_range(range: &IpNet) -> String {
    if range.prefix_len() == range.max_prefix_len() {
        range.addr().to_string()
    } else {
        range.to_string()
    }
}

fn read_digits(text: &str) -> Option<[u8; 32]> {
    hex::decode_32(text.to_ascii_lowercase().as_bytes())
}

fn read_key(text: &str) -> Option<Key> {
    read_digits(text).or_else(|| npub::decode(text))
}

fn read_id(text: &str) -> Option<Id> {
    read_digits(text).or_else(|| npub::decode_id(text))
}

impl fmt::Display for RulingSubject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.sort().name())?;
        match self {
            Self::Key(bytes) | Self::Id(bytes) => f.write_str(&hex::text_32(bytes)),
            Self::Kind(kind) => kind.fmt(f),
            Self::Word(word) => f.write_str(word),
            Self::Addresses(range) => f.write_str(&shown_range(range)),
        }
    }
}

impl FromStr for RulingSubject {
    type Err = SubjectError;

    fn from_str(text: &str) -> Result<Self, SubjectError> {
        let text = text.trim();
        let prefix = text.split_once(':').and_then(|(name, value)| {
            let name = if name == "address" { "addresses" } else { name };
            Some((SubjectSort::from_name(name)?, value))
        });
        if let Some((sort, value)) = prefix {
            return Self::of_sort(sort, value);
        }
        if let Ok(range) = ranges::read(text) {
            return Ok(Self::addresses(range));
        }
        let lower = text.to_ascii_lowercase();
        let typed = |prefix: &str| lower.starts_with(prefix);
        let wrong = |sort| {
            let advice = "; a character of it is wrong or missing";
            Err(SubjectError::Value { sort, text: text.into(), advice })
        };
        if let Some(key) = read_key(text) {
            Ok(Self::Key(key))
        } else if typed("npub1") {
            wrong(SubjectSort::Key)
        } else if typed("note1") || typed("nevent1") {
            read_id(text).map_or_else(|| wrong(SubjectSort::Id), |id| Ok(Self::Id(id)))
        } else {
            Err(SubjectError::Form(text.into()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subjects_are_recognised_by_their_form_and_come_back() {
        let key = RulingSubject::Key([7; 32]);
        let digits = "07".repeat(32);
        for (text, subject, shown) in [
            (digits.as_str(), key.clone(), npub::encode(&[7; 32])),
            (&digits.to_uppercase(), key.clone(), npub::encode(&[7; 32])),
            (&npub::encode(&[7; 32]), key.clone(), npub::encode(&[7; 32])),
            (&format!("key:{digits}"), key, npub::encode(&[7; 32])),
            (&format!("id:{digits}"), RulingSubject::Id([7; 32]), format!("id:{digits}")),
            ("kind:1984", RulingSubject::Kind(1984), "kind:1984".into()),
            ("word: *Casino ", RulingSubject::Word("*casino".into()), "word:*casino".into()),
            (
                "192.0.2.7",
                "192.0.2.7/32".parse().map(RulingSubject::Addresses).unwrap(),
                "192.0.2.7".into(),
            ),
            ("::ffff:192.0.2.7", "192.0.2.7".parse().unwrap(), "192.0.2.7".into()),
            ("2001:db8::/32", "addresses:2001:db8::/32".parse().unwrap(), "2001:db8::/32".into()),
        ] {
            assert_eq!(text.parse(), Ok(subject.clone()), "{text}");
            assert_eq!(subject.to_string().parse(), Ok(subject.clone()), "{text}");
            assert_eq!(subject.shown(), shown, "{text}");
        }
        for wrong in [
            "",
            "somebody",
            "kind:70000",
            "kind:-1",
            "word:**",
            "word:",
            "id:12",
            "192.0.2.1/24",
            "npub1xx",
            "note1xx",
            "nevent1",
            "key:12",
            &"0".repeat(63),
            "word:a\nb",
        ] {
            assert!(wrong.parse::<RulingSubject>().is_err(), "{wrong}");
        }
    }
}
