//! Reads a message, range by range, in place.

use super::VERSION;
use super::bound::{NegentropyItem, RangeBound};
use super::error::NegentropyError;
use super::fingerprint::Fingerprint;
use crate::record::Id;

/// The content of a range in a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RangeWords<'a> {
    /// Nothing: the range is finished, and is not compared any further.
    Skip,
    /// The fingerprint of the sender's items.
    Fingerprint(&'a Fingerprint),
    /// The ids of the sender's items, in any order.
    Ids(&'a [Id]),
}

/// The position of a reader between two ranges of a message.
#[derive(Clone, Copy, Debug)]
pub(super) struct MessageReader {
    at: usize,
    /// End of the range that was read last.
    bound: NegentropyItem,
}

/// Returns whether a message has this version of the protocol. The answer to a message of another
/// version is only the byte of this version.
pub(super) fn is_ours(message: &[u8]) -> Result<bool, NegentropyError> {
    match message.first() {
        None => Err(NegentropyError::Short),
        Some(&VERSION) => Ok(true),
        Some(0x60..=0x6f) => Ok(false),
        Some(other) => Err(NegentropyError::NoVersion(*other)),
    }
}

/// Checks a whole message, and returns whether it has this version. In a message of another
/// version, only the first byte is checked.
pub fn check_message(message: &[u8]) -> Result<bool, NegentropyError> {
    let is_ours = is_ours(message)?;
    let mut reader = MessageReader::new();
    while is_ours && reader.next(message)?.is_some() {}
    Ok(is_ours)
}

impl MessageReader {
    /// Returns the position before the first range.
    pub(super) const fn new() -> Self {
        Self { at: 1, bound: NegentropyItem { time: 0, id: [0; 32] } }
    }

    /// Reads the next range of `message`; `None` at its end.
    pub(super) fn next<'a>(
        &mut self,
        message: &'a [u8],
    ) -> Result<Option<(RangeBound, RangeWords<'a>)>, NegentropyError> {
        let mut rest = message.get(self.at..).unwrap_or_default();
        if rest.is_empty() {
            return Ok(None);
        }
        let bound = read_bound(&mut rest, self.bound.time)?;
        if bound.at < self.bound {
            return Err(NegentropyError::Order);
        }
        let words = match read_number(&mut rest)? {
            0 => RangeWords::Skip,
            1 => {
                let (fingerprint, after) =
                    rest.split_first_chunk().ok_or(NegentropyError::Short)?;
                rest = after;
                RangeWords::Fingerprint(fingerprint)
            }
            2 => {
                let count = usize::try_from(read_number(&mut rest)?).ok();
                let bytes = count.and_then(|count| count.checked_mul(32));
                let bytes = read_bytes(&mut rest, bytes.ok_or(NegentropyError::Short)?)?;
                RangeWords::Ids(bytes.as_chunks().0)
            }
            other => return Err(NegentropyError::Mode(other)),
        };
        (self.at, self.bound) = (message.len() - rest.len(), bound.at);
        Ok(Some((bound, words)))
    }
}

fn read_bytes<'a>(from: &mut &'a [u8], len: usize) -> Result<&'a [u8], NegentropyError> {
    let (taken, rest) = from.split_at_checked(len).ok_or(NegentropyError::Short)?;
    *from = rest;
    Ok(taken)
}

/// Reads a number of at most ten digits.
fn read_number(from: &mut &[u8]) -> Result<u64, NegentropyError> {
    let mut number = 0_u64;
    loop {
        let (&digit, rest) = from.split_first().ok_or(NegentropyError::Short)?;
        // A leading zero, or too many digits.
        if digit == 0x80 && number == 0 || number >> 57 != 0 {
            return Err(NegentropyError::Number);
        }
        *from = rest;
        number = number << 7 | u64::from(digit & 0x7f);
        if digit & 0x80 == 0 {
            return Ok(number);
        }
    }
}

/// Reads a bound. `before` is the time of the previous bound.
fn read_bound(from: &mut &[u8], before: u64) -> Result<RangeBound, NegentropyError> {
    let time = match read_number(from)?.checked_sub(1) {
        None => u64::MAX,
        Some(step) => before.checked_add(step).ok_or(NegentropyError::Number)?,
    };
    let len = read_number(from)?;
    let mut bound = RangeBound { at: NegentropyItem { time, id: [0; 32] }, len: len.min(33) as u8 };
    let prefix = bound.at.id.get_mut(..usize::from(bound.len)).ok_or(NegentropyError::Prefix)?;
    prefix.copy_from_slice(read_bytes(from, prefix.len())?);
    Ok(bound)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nostr::negentropy::number::number as digits_of;

    #[test]
    fn numbers_have_one_spelling() {
        for number in [0, 1, 127, 128, 300, 16_383, 16_384, 1_700_000_000, u64::MAX - 1, u64::MAX] {
            let (digits, len) = digits_of(number);
            let mut written = &digits[digits.len() - len..];
            assert_eq!(written.len(), (64 - number.leading_zeros()).div_ceil(7).max(1) as usize);
            assert_eq!(read_number(&mut written), Ok(number));
            assert!(written.is_empty());
        }
        for (bytes, error) in [
            (&[][..], NegentropyError::Short),
            (&[0x81], NegentropyError::Short),
            (&[0x80, 0x01], NegentropyError::Number),
            (&[0x80], NegentropyError::Number),
            (&[0x82, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0], NegentropyError::Number),
            (&[0xff; 12], NegentropyError::Number),
        ] {
            assert_eq!(read_number(&mut &*bytes), Err(error), "{bytes:x?}");
        }
    }

    #[test]
    fn all_of_a_message_is_checked_if_it_has_this_version() {
        // The message has an infinite bound and no ids.
        let whole = [VERSION, 0, 0, 2, 0];
        assert_eq!(check_message(&whole), Ok(true));
        for (message, checked) in [
            (&[][..], Err(NegentropyError::Short)),
            (&[0x60, 0xff], Ok(false)),
            (&[0x70], Err(NegentropyError::NoVersion(0x70))),
            (&[VERSION], Ok(true)),
            (&[VERSION, 0, 0, 3], Err(NegentropyError::Mode(3))),
            (&[&whole[..4], &[1]].concat(), Err(NegentropyError::Short)),
        ] {
            assert_eq!(check_message(message), checked, "{message:x?}");
        }
    }
}
