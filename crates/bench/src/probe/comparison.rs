//! A small client of negentropy protocol 1 (NIP-77), written after the NIP's appendix and not with
//! Hark's codec, so the two do not share faults. It compares a few hundred events.

use std::collections::BTreeSet;

use anyhow::{Context as _, bail};
use hark_codec::crypto::sha256;

/// The first byte of a message of version 1.
pub(crate) const VERSION: u8 = 0x61;
/// The number of ids up to which a range is sent as a list.
const LIST_MAX: usize = 8;
/// The number of parts of a larger range.
const PARTS: usize = 4;

/// An event by its time and id.
pub(crate) type ComparedEvent = (u64, [u8; 32]);

/// The side that opens a comparison.
#[derive(Debug)]
pub(crate) struct ComparisonClient {
    /// Sorted by time, then by id.
    own: Vec<ComparedEvent>,
    /// The ids that only this side has.
    pub(crate) only_here: BTreeSet<[u8; 32]>,
    /// The ids that only the relay has.
    pub(crate) only_there: BTreeSet<[u8; 32]>,
}

/// The bound of a range. `None` in the time stands for infinity.
type ComparedBound = (Option<u64>, [u8; 32]);

impl ComparisonClient {
    pub(crate) fn new(mut own: Vec<ComparedEvent>) -> Self {
        own.sort_unstable();
        Self { own, only_here: BTreeSet::new(), only_there: BTreeSet::new() }
    }

    /// The first message: fingerprints of a few parts of all events.
    pub(crate) fn open(&self) -> Vec<u8> {
        let mut out = vec![VERSION];
        self.write_parts(0..self.own.len(), (None, [0; 32]), &mut 0, &mut out);
        out
    }

    /// Reads a message of the relay. Returns the next message, or `None` if nothing is left to
    /// compare.
    pub(crate) fn answer(&mut self, message: &[u8]) -> anyhow::Result<Option<Vec<u8>>> {
        let mut input = message;
        if read_byte(&mut input)? != VERSION {
            bail!("the message has another version");
        }
        let (mut out, mut written, mut is_open) = (vec![VERSION], 0, false);
        let (mut time, mut from) = (0, 0);
        while !input.is_empty() {
            let bound = read_bound(&mut input, &mut time)?;
            let to = self.own.partition_point(|event| is_before(event, &bound));
            if to < from {
                bail!("the ranges of the message are not in order");
            }
            match read_varint(&mut input)? {
                0 => write_skip(bound, &mut written, &mut out),
                1 => {
                    let sum = read_bytes(&mut input, 16)?;
                    if sum == fingerprint(&self.own[from..to]) {
                        write_skip(bound, &mut written, &mut out);
                    } else {
                        self.write_parts(from..to, bound, &mut written, &mut out);
                        is_open = true;
                    }
                }
                2 => {
                    let count = read_varint(&mut input)?;
                    let mut theirs = BTreeSet::new();
                    for _ in 0..count {
                        let id = read_bytes(&mut input, 32)?;
                        theirs.insert(<[u8; 32]>::try_from(id)?);
                    }
                    let own: BTreeSet<_> = self.own[from..to].iter().map(|event| event.1).collect();
                    self.only_here.extend(own.difference(&theirs));
                    self.only_there.extend(theirs.difference(&own));
                    write_skip(bound, &mut written, &mut out);
                }
                mode => bail!("a range has the mode {mode}"),
            }
            from = to;
        }
        Ok(is_open.then_some(out))
    }

    /// Appends the events of a range: as a list if they are few, or else as the fingerprints of
    /// parts.
    fn write_parts(
        &self,
        range: std::ops::Range<usize>,
        end: ComparedBound,
        written: &mut u64,
        out: &mut Vec<u8>,
    ) {
        if range.len() <= LIST_MAX {
            write_bound(end, written, out);
            write_varint(2, out);
            write_varint(range.len() as u64, out);
            for event in &self.own[range] {
                out.extend_from_slice(&event.1);
            }
            return;
        }
        let size = range.len().div_ceil(PARTS);
        let mut from = range.start;
        while from < range.end {
            let to = range.end.min(from + size);
            let bound = if to == range.end { end } else { (Some(self.own[to].0), self.own[to].1) };
            write_bound(bound, written, out);
            write_varint(1, out);
            out.extend_from_slice(&fingerprint(&self.own[from..to]));
            from = to;
        }
    }
}

/// The fingerprint of a range with these events.
pub(crate) fn fingerprint(events: &[ComparedEvent]) -> [u8; 16] {
    let mut sum = [0u8; 32];
    for (_, id) in events {
        let mut carry = 0;
        for (byte, added) in sum.iter_mut().zip(id) {
            let total = u16::from(*byte) + u16::from(*added) + carry;
            *byte = total as u8;
            carry = total >> 8;
        }
    }
    let mut bytes = sum.to_vec();
    write_varint(events.len() as u64, &mut bytes);
    let hash = sha256(&bytes);
    std::array::from_fn(|at| hash[at])
}

fn is_before(event: &ComparedEvent, (time, id): &ComparedBound) -> bool {
    time.is_none_or(|time| *event < (time, *id))
}

fn write_skip(bound: ComparedBound, written: &mut u64, out: &mut Vec<u8>) {
    write_bound(bound, written, out);
    write_varint(0, out);
}

/// Appends a bound with the whole id as prefix.
fn write_bound((time, id): ComparedBound, written: &mut u64, out: &mut Vec<u8>) {
    let Some(time) = time else {
        write_varint(0, out);
        write_varint(0, out);
        return;
    };
    write_varint(1 + time - *written, out);
    *written = time;
    write_varint(32, out);
    out.extend_from_slice(&id);
}

fn read_bound(input: &mut &[u8], time: &mut u64) -> anyhow::Result<ComparedBound> {
    let encoded = read_varint(input)?;
    let bound_time = match encoded.checked_sub(1) {
        None => None,
        Some(offset) => {
            *time = time.checked_add(offset).context("a time that is too large")?;
            Some(*time)
        }
    };
    let length = usize::try_from(read_varint(input)?)?;
    if length > 32 {
        bail!("an id of {length} bytes");
    }
    let mut id = [0; 32];
    id[..length].copy_from_slice(read_bytes(input, length)?);
    Ok((bound_time, id))
}

fn read_byte(input: &mut &[u8]) -> anyhow::Result<u8> {
    Ok(read_bytes(input, 1)?[0])
}

fn read_bytes<'a>(input: &mut &'a [u8], count: usize) -> anyhow::Result<&'a [u8]> {
    let (read, rest) = input.split_at_checked(count).context("the message ends too early")?;
    *input = rest;
    Ok(read)
}

fn read_varint(input: &mut &[u8]) -> anyhow::Result<u64> {
    let mut value = 0u64;
    loop {
        let byte = read_byte(input)?;
        value = value.checked_mul(128).context("a number that is too large")?;
        value |= u64::from(byte & 0x7f);
        if byte & 0x80 == 0 {
            return Ok(value);
        }
    }
}

fn write_varint(value: u64, out: &mut Vec<u8>) {
    let digits = (64 - value.leading_zeros()).div_ceil(7).max(1);
    for digit in (0..digits).rev() {
        let bits = (value >> (7 * digit)) as u8 & 0x7f;
        out.push(if digit == 0 { bits } else { bits | 0x80 });
    }
}

#[cfg(test)]
mod tests {
    use negentropy::{Id, Negentropy, NegentropyStorageVector};

    use super::*;
    use crate::random::Random;

    #[test]
    fn a_comparison_with_the_library_finds_every_difference() {
        let mut random = Random::new(3);
        for count in [0, 1, 9, 300] {
            let (mut here, mut there) = (Vec::new(), NegentropyStorageVector::new());
            let (mut only_here, mut only_there) = (BTreeSet::new(), BTreeSet::new());
            for _ in 0..count {
                let (time, id) = (1_700_000_000 + random.below(20) as u64, random.bytes());
                let side = random.below(10);
                if side != 0 {
                    here.push((time, id));
                }
                if side != 1 {
                    there.insert(time, Id::from_byte_array(id)).unwrap();
                }
                if side == 0 {
                    only_there.insert(id);
                }
                if side == 1 {
                    only_here.insert(id);
                }
            }
            there.seal().unwrap();
            let mut relay = Negentropy::owned(there, 0).unwrap();
            let mut client = ComparisonClient::new(here);
            let mut message = Some(client.open());
            while let Some(sent) = message {
                message = client.answer(&relay.reconcile(&sent).unwrap()).unwrap();
            }
            assert_eq!((client.only_here, client.only_there), (only_here, only_there));
        }
    }
}
