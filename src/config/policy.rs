//! The policy as typed: lists of entries. The entries are in the setting itself, or in files that
//! have one entry per line. The setting names a file as `@NAME`. In an allow list, the single entry
//! [`ALL`] allows everything.

use std::collections::{BTreeSet, HashSet};
use std::fmt::Display;
use std::fs;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use hark_archive::Key;
use hark_networks::nostr::question_rules::{MembersOnly, QuestionRules, RULE_KINDS_MAX};
use hark_server::nostr::policy::{ADDRESSED_KINDS, EventPolicy, WordList};
use hark_server::nostr::{DomainList, NameRules};
use hark_server::ranges;
use hark_server::{AddressLists, ListedClients};
use ipnet::IpNet;

use super::files::FileTexts;
use super::keys::public_key;
use super::setting_type::{SettingType, quoted, wanted};
use super::value::TypedValue;

/// The entry that allows everything. The entry stands only in a setting itself, never in a file.
const ALL: &str = "*";

/// The value of a setting with a list: entries, and `@NAME` for each file with entries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PolicyList(pub(crate) Vec<String>);

/// All lists of the policy, and the required proof of work of events.
#[derive(Clone, Debug)]
pub(crate) struct PolicyLists {
    pub(crate) allow_addresses: PolicyList,
    pub(crate) deny_addresses: PolicyList,
    pub(crate) allow_keys: PolicyList,
    pub(crate) addressed_kinds: PolicyList,
    pub(crate) open_kinds: PolicyList,
    pub(crate) deny_keys: PolicyList,
    pub(crate) allow_kinds: PolicyList,
    pub(crate) deny_kinds: PolicyList,
    pub(crate) allow_words: PolicyList,
    pub(crate) deny_words: PolicyList,
    pub(crate) pow_bits_min: u64,
    pub(crate) wraps_need_auth: bool,
    pub(crate) members_only_kinds: PolicyList,
    pub(crate) members_only_except_own: bool,
    pub(crate) question_kinds: PolicyList,
    pub(crate) narrow_questions: bool,
    pub(crate) spared_addresses: PolicyList,
    pub(crate) spared_keys: PolicyList,
    pub(crate) manager_keys: PolicyList,
    pub(crate) name_domains_allowed: PolicyList,
    pub(crate) name_domains_denied: PolicyList,
}

impl Default for PolicyLists {
    fn default() -> Self {
        let (none, all) = (PolicyList::default, || PolicyList(vec![ALL.into()]));
        let addressed_kinds = ADDRESSED_KINDS.iter().map(u16::to_string).collect();
        Self {
            allow_addresses: all(),
            deny_addresses: none(),
            allow_keys: all(),
            addressed_kinds: PolicyList(addressed_kinds),
            open_kinds: none(),
            deny_keys: none(),
            allow_kinds: all(),
            deny_kinds: none(),
            allow_words: all(),
            deny_words: none(),
            pow_bits_min: 0,
            wraps_need_auth: false,
            members_only_kinds: none(),
            members_only_except_own: false,
            question_kinds: all(),
            narrow_questions: false,
            spared_addresses: none(),
            spared_keys: none(),
            manager_keys: none(),
            name_domains_allowed: all(),
            name_domains_denied: none(),
        }
    }
}

/// The lists including the entries of their files.
type ReadLists = (AddressLists, EventPolicy, ListedClients, HashSet<Key>);

impl PolicyLists {
    /// Returns all files that the lists name. Relative names are resolved against `folder`.
    pub(crate) fn files(&self, folder: &Path) -> Vec<PathBuf> {
        let lists = [
            &self.allow_addresses,
            &self.deny_addresses,
            &self.allow_keys,
            &self.addressed_kinds,
            &self.open_kinds,
            &self.deny_keys,
            &self.allow_kinds,
            &self.deny_kinds,
            &self.allow_words,
            &self.deny_words,
            &self.members_only_kinds,
            &self.question_kinds,
            &self.spared_addresses,
            &self.spared_keys,
            &self.manager_keys,
            &self.name_domains_allowed,
            &self.name_domains_denied,
        ];
        lists.into_iter().flat_map(|list| list.files(folder)).collect()
    }

    /// Reads the files, adds their texts to `texts`, and checks every entry.
    pub(crate) fn read(
        &self,
        folder: &Path,
        texts: &mut FileTexts,
    ) -> Result<ReadLists, Vec<String>> {
        let mut reader = PolicyReader::new(folder, "policy", texts);
        let addresses = AddressLists {
            allow: (!self.allow_addresses.is_all())
                .then(|| reader.addresses("allow_addresses", &self.allow_addresses)),
            deny: reader.addresses("deny_addresses", &self.deny_addresses),
        };
        let mut policy = EventPolicy {
            allow_keys: (!self.allow_keys.is_all())
                .then(|| reader.keys("allow_keys", &self.allow_keys)),
            addressed_kinds: reader.kinds("addressed_kinds", &self.addressed_kinds),
            open_kinds: reader.kinds("open_kinds", &self.open_kinds),
            deny_keys: reader.keys("deny_keys", &self.deny_keys),
            allow_kinds: (!self.allow_kinds.is_all())
                .then(|| reader.kinds("allow_kinds", &self.allow_kinds)),
            deny_kinds: reader.kinds("deny_kinds", &self.deny_kinds),
            allow_words: (!self.allow_words.is_all())
                .then(|| reader.words("allow_words", &self.allow_words)),
            deny_words: reader.words("deny_words", &self.deny_words),
            pow_bits_min: u8::try_from(self.pow_bits_min).unwrap_or(u8::MAX),
            wraps_need_auth: self.wraps_need_auth,
            questions: self.read_questions(&mut reader),
            names: NameRules::default(),
        };
        reader.section = "rates";
        let spared = ListedClients {
            addresses: reader.addresses("spared_addresses", &self.spared_addresses),
            keys: reader.keys("spared_keys", &self.spared_keys),
        };
        reader.section = "manage";
        let managers = reader.keys("keys", &self.manager_keys);
        reader.section = "names";
        policy.names.domains_allowed = (!self.name_domains_allowed.is_all())
            .then(|| reader.domains("domains_allowed", &self.name_domains_allowed));
        policy.names.domains_denied = reader.domains("domains_denied", &self.name_domains_denied);
        if !reader.faults.is_empty() {
            return Err(reader.faults);
        }
        Ok((addresses, policy, spared, managers))
    }

    fn read_questions(&self, reader: &mut PolicyReader<'_>) -> QuestionRules {
        let members_only = if self.members_only_kinds.is_all() {
            MembersOnly::Everything
        } else {
            MembersOnly::Kinds(reader.rule_kinds("members_only_kinds", &self.members_only_kinds))
        };
        QuestionRules {
            members_only,
            except_own: self.members_only_except_own,
            kinds: (!self.question_kinds.is_all())
                .then(|| reader.rule_kinds("question_kinds", &self.question_kinds)),
            narrow: self.narrow_questions,
        }
    }
}

impl PolicyList {
    /// Returns the files that the list names. Relative names are resolved against `folder`.
    pub(super) fn files(&self, folder: &Path) -> impl Iterator<Item = PathBuf> {
        let files = self.0.iter().filter_map(|entry| entry.strip_prefix('@'));
        files.map(|file| folder.join(file))
    }

    /// Whether the list allows everything.
    fn is_all(&self) -> bool {
        matches!(&self.0[..], [entry] if entry == ALL)
    }
}

pub(super) struct PolicyReader<'a> {
    folder: &'a Path,
    /// The texts of the files that were read.
    texts: &'a mut FileTexts,
    /// The section of the settings that are read.
    section: &'static str,
    pub(super) faults: Vec<String>,
}

impl<'a> PolicyReader<'a> {
    /// Reads the lists of a section. Relative names of files are resolved against `folder`.
    pub(super) fn new(folder: &'a Path, section: &'static str, texts: &'a mut FileTexts) -> Self {
        Self { folder, section, texts, faults: Vec::new() }
    }

    /// Reads addresses and networks.
    pub(super) fn addresses(&mut self, name: &str, list: &PolicyList) -> Vec<IpNet> {
        self.list(name, list, range)
    }

    /// Reads kinds and ranges of kinds.
    pub(super) fn kinds(&mut self, name: &str, list: &PolicyList) -> Vec<RangeInclusive<u16>> {
        self.list(name, list, kinds)
    }

    /// Reads domains.
    fn domains(&mut self, name: &str, list: &PolicyList) -> DomainList {
        let mut domains = DomainList::default();
        self.list(name, list, |text| {
            let is_domain = domains.add(text);
            let words =
                "is no domain like example.com and no list of subdomains like *.example.com";
            if is_domain { Ok(()) } else { Err(format!("{text:?} {words}")) }
        });
        domains
    }

    fn list<T>(
        &mut self,
        name: &str,
        list: &PolicyList,
        read: impl FnMut(&str) -> Result<T, String>,
    ) -> Vec<T> {
        self.entries(name, list, entry_of, read)
    }

    /// Reads the entries of a list. `without_comment` extracts the entry from a line of a file.
    fn entries<T>(
        &mut self,
        name: &str,
        list: &PolicyList,
        without_comment: fn(&str) -> &str,
        mut read: impl FnMut(&str) -> Result<T, String>,
    ) -> Vec<T> {
        let mut values = Vec::new();
        for entry in &list.0 {
            if entry == ALL {
                self.faults.push(format!(
                    "[{}] `{name}`: \"{ALL}\" stands alone, in a list of what is allowed",
                    self.section
                ));
                continue;
            }
            let Some(file) = entry.strip_prefix('@') else {
                self.entry(&format!("[{}] `{name}`", self.section), entry, &mut read, &mut values);
                continue;
            };
            let path = self.folder.join(file);
            match fs::read_to_string(&path) {
                Ok(text) => {
                    for (line, entry) in (1..).zip(text.lines().map(without_comment)) {
                        if !entry.is_empty() {
                            let origin = format!("{}:{line}", path.display());
                            self.entry(&origin, entry, &mut read, &mut values);
                        }
                    }
                    self.texts.insert(path, text);
                }
                Err(error) => self.faults.push(format!(
                    "[{}] `{name}`: {} could not be read: {error}",
                    self.section,
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
        read: &mut impl FnMut(&str) -> Result<T, String>,
        values: &mut Vec<T>,
    ) {
        match read(entry) {
            Ok(value) => values.push(value),
            Err(fault) => self.faults.push(format!("{origin}: {fault}")),
        }
    }

    /// Reads public keys.
    pub(super) fn keys(&mut self, name: &str, list: &PolicyList) -> HashSet<Key> {
        self.list(name, list, public_key).into_iter().collect()
    }

    /// Reads the kinds of a rule for questions, ascending.
    fn rule_kinds(&mut self, name: &str, list: &PolicyList) -> Vec<u32> {
        let ranges = self.list(name, list, kinds);
        let kinds: BTreeSet<u32> = ranges.into_iter().flatten().map(u32::from).collect();
        if kinds.len() > RULE_KINDS_MAX {
            self.faults.push(format!(
                "[{}] `{name}`: {} kinds are more than {RULE_KINDS_MAX}, the maximum",
                self.section,
                kinds.len()
            ));
        }
        kinds.into_iter().collect()
    }

    fn words(&mut self, name: &str, list: &PolicyList) -> WordList {
        let words = self.entries(name, list, words_of, |word| {
            let is_word = !word.trim().trim_matches('*').is_empty();
            is_word.then(|| word.to_owned()).ok_or_else(|| format!("{word:?} is no word"))
        });
        WordList::new(&words).unwrap_or_else(|error| {
            self.faults.push(format!("[{}] `{name}`: {error}", self.section));
            WordList::default()
        })
    }
}

fn range(text: &str) -> Result<IpNet, String> {
    ranges::read(text).map_err(|fault| format!("{text:?} {fault}"))
}

/// Returns a line of a file without its comment, which starts with `#`.
fn entry_of(line: &str) -> &str {
    line.split_once('#').map_or(line, |(entry, _)| entry).trim()
}

/// Returns a line of a word file without its comment. Words such as hashtags may contain a `#`. So
/// a comment starts with a `#` at the start of the line or between spaces.
fn words_of(line: &str) -> &str {
    let line = line.trim();
    if line.starts_with('#') {
        return "";
    }
    let ends = |at: &usize| {
        let (before, behind) = (&line[..*at], &line[at + 1..]);
        let is_space = char::is_whitespace;
        before.ends_with(is_space) && (behind.is_empty() || behind.starts_with(is_space))
    };
    let comment = line.match_indices('#').map(|(at, _)| at).find(ends);
    line[..comment.unwrap_or(line.len())].trim_end()
}

fn kinds(text: &str) -> Result<RangeInclusive<u16>, String> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    match (first.trim().parse(), last.trim().parse()) {
        (Ok(first), Ok(last)) if first <= last => Ok(first..=last),
        _ => Err(format!("{text:?} is no kind like 1 and no range like \"20000-29999\"")),
    }
}

impl SettingType for PolicyList {
    fn read(value: &TypedValue) -> Result<Self, String> {
        let entry = |value: &TypedValue| match value {
            TypedValue::Text(text) | TypedValue::Bare(text) => Some(text.clone()),
            TypedValue::Whole(number) => Some(number.to_string()),
            _ => None,
        };
        let entries =
            value.entries().and_then(|list| list.iter().map(entry).collect::<Option<_>>());
        entries
            .map(Self)
            .map_or_else(|| wanted("a list of entries like [\"one\", \"@file\"]", value), Ok)
    }

    fn show(&self) -> String {
        let entries: Vec<String> = self.0.iter().map(|entry| quoted(entry)).collect();
        format!("[{}]", entries.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comment_may_follow_an_entry() {
        for (line, entry) in [
            ("", ""),
            ("# all of it", ""),
            (" ab12  # alice", "ab12"),
            ("ab12 #alice", "ab12"),
            ("ab12#", "ab12"),
            (" 1-5 ", "1-5"),
        ] {
            assert_eq!(entry_of(line), entry, "{line}");
        }
        for (line, word) in [
            ("#coin", ""),
            ("*#coin* # a hashtag", "*#coin*"),
            ("two words  # three # four", "two words"),
            ("é #1 coin", "é #1 coin"),
            ("coin #", "coin"),
        ] {
            assert_eq!(words_of(line), word, "{line}");
        }
    }
}
