//! Errors of filters.

use std::fmt;

use super::json_error::{JsonError, NumberError};

/// An element of a filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Element {
    /// `ids`.
    Ids,
    /// `authors`.
    Authors,
    /// `kinds`.
    Kinds,
    /// A tag for which an event must have one of the values, by its letter: `#t`.
    Tag(u8),
    /// A tag for which an event must have all values, by its letter: `&t`.
    AndTag(u8),
    /// `since`.
    Since,
    /// `until`.
    Until,
    /// `limit`.
    Limit,
    /// `search`.
    Search,
}

impl fmt::Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ids => "ids",
            Self::Authors => "authors",
            Self::Kinds => "kinds",
            Self::Since => "since",
            Self::Until => "until",
            Self::Limit => "limit",
            Self::Search => "search",
            Self::Tag(letter) => return write!(f, "#{}", char::from(*letter)),
            Self::AndTag(letter) => return write!(f, "&{}", char::from(*letter)),
        })
    }
}

/// Why bytes are not a valid filter.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FilterError {
    /// Not valid JSON.
    #[error("{0}")]
    Json(#[from] JsonError),
    /// Not an object.
    #[error("filter is not an object")]
    NoObject,
    /// Not an array.
    #[error("{0} is not an array")]
    NoArray(Element),
    /// The value is not a string.
    #[error("{0} holds something other than strings")]
    NoString(Element),
    /// The value is neither an id nor a key.
    #[error("{element}[{index}] is not 64 lowercase hex digits")]
    Hex {
        /// The list.
        element: Element,
        /// Index of the value in the list, from 0.
        index: u32,
    },
    /// Not a valid number.
    #[error("{element} {reason}")]
    Number {
        /// The element.
        element: Element,
        /// The reason.
        reason: NumberError,
    },
    /// A kind has more than 16 bits.
    #[error("kind {0} is above 65535")]
    KindRange(u64),
    /// An element occurs twice.
    #[error("filter has more than one {0}")]
    Duplicate(Element),
    /// The filter has more values than the reader accepts.
    #[error("a filter has more than {0} values, including repeated values; split it")]
    TooManyValues(usize),
    /// An element that the relay does not know. The filter is refused, because without the element
    /// it would have another meaning.
    #[error("filter element {0:?}")]
    Unsupported(Box<str>),
}

impl FilterError {
    /// Whether the filter is well-formed, but contains an element that is not supported.
    pub fn is_unsupported(&self) -> bool {
        matches!(self, Self::Unsupported(_))
    }
}
