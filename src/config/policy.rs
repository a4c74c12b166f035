//! The policy as typed: lists whose entries stand in the setting itself or in files with one entry
//! a line, named after an `@`.

use std::fmt::Display;
use std::fs;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use hark_codec::hex;
use hark_server::AddressLists;
use hark_server::nostr::policy::{EventPolicy, WordList};
use hark_server::ranges;
use ipnet::IpNet;

/// A list as typed: entries, and `@` names of files of entries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PolicyList(pub(crate) Vec<String>);

/// All lists of the policy, and the proof of work that events must show.
#[derive(Clone, Debug, Default)]
pub(crate) struct PolicyLists {
    pub(crate) allow_addresses: PolicyList,
    pub(crate) deny_addresses: PolicyList,
    pub(crate) allow_keys: PolicyList,
    pub(crate) deny_keys: PolicyList,
    pub(crate) allow_kinds: PolicyList,
    pub(crate) deny_kinds: PolicyList,
    pub(crate) allow_words: PolicyList,
    pub(crate) deny_words: PolicyList,
    pub(crate) pow_bits_min: u64,
}

impl PolicyLists {
    /// Returns all files that the lists name. Relative names are resolved against `folder`.
    pub(crate) fn files(&self, folder: &Path) -> Vec<PathBuf> {
        let lists = [
            &self.allow_addresses,
            &self.deny_addresses,
            &self.allow_keys,
            &self.deny_keys,
            &self.allow_kinds,
            &self.deny_kinds,
            &self.allow_words,
            &self.deny_words,
        ];
        let entries = lists.into_iter().flat_map(|list| &list.0);
        entries.filter_map(|entry| entry.strip_prefix('@')).map(|file| folder.join(file)).collect()
    }

    /// Reads the files and checks every entry.
    pub(crate) fn read(&self, folder: &Path) -> Result<(AddressLists, EventPolicy), Vec<String>> {
        let mut reader = PolicyReader { folder, faults: Vec::new() };
        let addresses = AddressLists {
            allow: reader.list("allow_addresses", &self.allow_addresses, range),
            deny: reader.list("deny_addresses", &self.deny_addresses, range),
        };
        let policy = EventPolicy {
            allow_keys: reader.list("allow_keys", &self.allow_keys, key).into_iter().collect(),
            deny_keys: reader.list("deny_keys", &self.deny_keys, key).into_iter().collect(),
            allow_kinds: reader.list("allow_kinds", &self.allow_kinds, kinds),
            deny_kinds: reader.list("deny_kinds", &self.deny_kinds, kinds),
            allow_words: reader.words("allow_words", &self.allow_words),
            deny_words: reader.words("deny_words", &self.deny_words),
            pow_bits_min: u8::try_from(self.pow_bits_min).unwrap_or(u8::MAX),
        };
        if reader.faults.is_empty() { Ok((addresses, policy)) } else { Err(reader.faults) }
    }
}

struct PolicyReader<'a> {
    folder: &'a Path,
    faults: Vec<String>,
}

impl PolicyReader<'_> {
    fn list<T>(
        &mut self,
        name: &str,
        list: &PolicyList,
        read: impl Fn(&str) -> Result<T, String>,
    ) -> Vec<T> {
        let mut values = Vec::new();
        for entry in &list.0 {
            let Some(file) = entry.strip_prefix('@') else {
                self.entry(&format!("[policy] `{name}`"), entry, &read, &mut values);
                continue;
            };
            let path = self.folder.join(file);
            match fs::read_to_string(&path) {
                Ok(text) => {
                    for (line, entry) in (1..).zip(text.lines().map(str::trim)) {
                        if !entry.is_empty() && !entry.starts_with('#') {
                            let origin = format!("{}:{line}", path.display());
                            self.entry(&origin, entry, &read, &mut values);
                        }
                    }
                }
                Err(error) => self.faults.push(format!(
                    "[policy] `{name}`: {} could not be read: {error}",
                    path.display()
                )),
            }
        }
        values
    }

    fn entry<T>(
        &mut self,
        origin: &impl Display,
        entry: &str,
        read: &impl Fn(&str) -> Result<T, String>,
        values: &mut Vec<T>,
    ) {
        match read(entry) {
            Ok(value) => values.push(value),
            Err(fault) => self.faults.push(format!("{origin}: {fault}")),
        }
    }

    fn words(&mut self, name: &str, list: &PolicyList) -> WordList {
        let words = self.list(name, list, |word| Ok(word.to_owned()));
        WordList::new(&words).unwrap_or_else(|error| {
            self.faults.push(format!("[policy] `{name}`: {error}"));
            WordList::default()
        })
    }
}

fn range(text: &str) -> Result<IpNet, String> {
    ranges::read(text).map_err(|fault| format!("{text:?} {fault}"))
}

fn key(text: &str) -> Result<[u8; 32], String> {
    hex::decode_32(text.as_bytes())
        .ok_or_else(|| format!("{text:?} is no public key of 64 lowercase hex digits"))
}

fn kinds(text: &str) -> Result<RangeInclusive<u16>, String> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    match (first.trim().parse(), last.trim().parse()) {
        (Ok(first), Ok(last)) if first <= last => Ok(first..=last),
        _ => Err(format!("{text:?} is no kind like 1 and no range like \"20000-29999\"")),
    }
}
