//! The groups of clients and kinds with rates of their own.

use std::path::{Path, PathBuf};

use hark_server::limits::Rate;
use hark_server::{ListedClients, RateFactor, RateGroup, RateName};

use super::bounds::ANY;
use super::files::FileTexts;
use super::policy::{PolicyList, PolicyReader};
use super::setting_type::{SettingType, quoted, wanted};
use super::value::{TypedValue, did_you_mean};

/// Maximum number of groups. Each is a value of a metric's label.
const GROUPS_MAX: usize = 32;
/// Maximum number of characters of a name.
const NAME_CHARS_MAX: usize = 32;
/// The name that `hark clients` shows for the clients of `spared_addresses` and `spared_keys`.
const RESERVED: &str = "spared";
/// The largest factor. The smallest factor is a thousandth.
const TIMES_MAX: f64 = 1_000.0;
/// The rates that a group of kinds may have.
const OF_KINDS: [RateName; 2] = [RateName::EventsPerAddress, RateName::EventsPerKey];

/// The groups as typed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TypedRateGroups(Vec<TypedRateGroup>);

/// A group as typed: `None` for everything that is not set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct TypedRateGroup {
    name: String,
    keys: Option<PolicyList>,
    addresses: Option<PolicyList>,
    trusted: Option<bool>,
    kinds: Option<PolicyList>,
    times: Option<RateFactor>,
    rates: Vec<(RateName, Option<Rate>)>,
    connections_per_address_max: Option<usize>,
}

impl TypedRateGroups {
    /// Returns all files that the lists name. Relative names are resolved against `folder`.
    pub(super) fn files(&self, folder: &Path) -> Vec<PathBuf> {
        let lists = |group: &TypedRateGroup| {
            let TypedRateGroup { keys, addresses, kinds, .. } = group;
            let lists = [keys, addresses, kinds].into_iter().flatten();
            lists.flat_map(|list| list.files(folder)).collect::<Vec<_>>()
        };
        self.0.iter().flat_map(lists).collect()
    }

    /// Reads the files, adds their texts to `texts`, and checks every entry.
    pub(super) fn read(
        &self,
        folder: &Path,
        texts: &mut FileTexts,
    ) -> Result<Vec<RateGroup>, Vec<String>> {
        let mut reader = PolicyReader::new(folder, "rates", texts);
        let groups = self.0.iter().map(|group| group.read(&mut reader)).collect();
        if reader.faults.is_empty() { Ok(groups) } else { Err(reader.faults) }
    }
}

impl TypedRateGroup {
    fn read(&self, reader: &mut PolicyReader<'_>) -> RateGroup {
        let (keys, addresses) = (self.keys.as_ref(), self.addresses.as_ref());
        // A list that is set and has no entries has no clients. It does not stand for all clients.
        let clients = self.has_clients().then(|| ListedClients {
            addresses: addresses.map(|list| reader.addresses("groups", list)).unwrap_or_default(),
            keys: keys.map(|list| reader.keys("groups", list)).unwrap_or_default(),
        });
        RateGroup {
            clients,
            trusted: self.trusted.unwrap_or(false),
            kinds: self.kinds.as_ref().map(|list| reader.kinds("groups", list)),
            times: self.times.unwrap_or(RateFactor::ONE),
            rates: self.rates.clone(),
            connections_per_address_max: self.connections_per_address_max,
            ..RateGroup::new(&self.name)
        }
    }

    /// Whether the group is of some clients only.
    fn has_clients(&self) -> bool {
        self.keys.is_some() || self.addresses.is_some() || self.trusted.is_some()
    }

    /// Returns the fault of settings that do not fit together.
    fn fault(&self) -> Option<&'static str> {
        let is_of_kinds = self.kinds.is_some();
        if !is_of_kinds && !self.has_clients() {
            return Some("names no clients: set `keys`, `addresses` or `trusted`, or `kinds`");
        }
        if is_of_kinds {
            let has_others = self.times.is_some() || self.connections_per_address_max.is_some();
            if has_others || self.rates.iter().any(|(name, _)| !OF_KINDS.contains(name)) {
                return Some(
                    "has kinds, so it can only have events_per_address and events_per_key",
                );
            }
            return self
                .rates
                .is_empty()
                .then_some("has kinds, but neither events_per_address nor events_per_key");
        }
        if self.connections_per_address_max.is_some() && self.addresses.is_none() {
            return Some(
                "has connections_per_address_max without addresses; no key is proved yet when a \
                 connection is opened",
            );
        }
        let has_rates = self.times.is_some() || !self.rates.is_empty();
        let has_any = has_rates || self.connections_per_address_max.is_some();
        (!has_any).then_some("changes nothing; set `times`, e.g. 10, or a rate")
    }

    fn show(&self) -> String {
        let mut parts = vec![format!("name = {}", quoted(&self.name))];
        let lists = [("keys", &self.keys), ("addresses", &self.addresses), ("kinds", &self.kinds)];
        let lists = lists.into_iter().filter_map(|(key, list)| Some((key, list.as_ref()?)));
        parts.extend(lists.map(|(key, list)| format!("{key} = {}", list.show())));
        parts.extend(self.trusted.map(|trusted| format!("trusted = {trusted}")));
        parts.extend(self.times.map(|times| format!("times = {}", show_factor(times))));
        for (key, rate) in RateName::all().filter_map(|(name, key)| {
            Some((key, &self.rates.iter().find(|(own, _)| *own == name)?.1))
        }) {
            parts.push(format!("{key} = {}", rate.show()));
        }
        let connections = self.connections_per_address_max;
        parts.extend(connections.map(|max| format!("connections_per_address_max = {max}")));
        format!("{{ {} }}", parts.join(", "))
    }
}

impl SettingType for TypedRateGroups {
    fn read(value: &TypedValue) -> Result<Self, String> {
        let groups: Vec<TypedRateGroup> = match value.entries() {
            Some(list) => list.iter().map(group).collect::<Result<_, _>>()?,
            None => return wanted("a list of groups in TOML", value),
        };
        if groups.len() > GROUPS_MAX {
            return Err(format!("has {} groups, more than {GROUPS_MAX}", groups.len()));
        }
        for (at, group) in groups.iter().enumerate() {
            if groups[..at].iter().any(|other| other.name == group.name) {
                return Err(format!("has two groups with the name {:?}", group.name));
            }
        }
        Ok(Self(groups))
    }

    fn show(&self) -> String {
        let groups: Vec<String> = self.0.iter().map(TypedRateGroup::show).collect();
        format!("[{}]", groups.join(", "))
    }
}

fn group(value: &TypedValue) -> Result<TypedRateGroup, String> {
    let TypedValue::Table(table) = value else {
        let what = "a group like { name = \"members\", keys = [\"@members.txt\"], times = 10 }";
        return wanted(what, value);
    };
    let mut group = TypedRateGroup::default();
    for (key, line, value) in table {
        let list = || PolicyList::read(value).map(Some);
        let read = match key.as_str() {
            "name" => name_of(value).map(|name| group.name = name),
            "keys" => list().map(|keys| group.keys = keys),
            "addresses" => list().map(|addresses| group.addresses = addresses),
            "trusted" => bool::read(value).map(|trusted| group.trusted = Some(trusted)),
            "kinds" => list().map(|kinds| group.kinds = kinds),
            "times" => factor(value).map(|times| group.times = Some(times)),
            "connections_per_address_max" => {
                connections(value).map(|max| group.connections_per_address_max = Some(max))
            }
            key => rate_name(key).and_then(|name| {
                group.rates.push((name, rate(value)?));
                Ok(())
            }),
        };
        read.map_err(|fault| format!("`{key}` of a group, line {line}: {fault}"))?;
    }
    if group.name.is_empty() {
        return Err("has a group without `name`, e.g. \"members\"".into());
    }
    match group.fault() {
        Some(fault) => Err(format!("has a group {:?} that {fault}", group.name)),
        None => Ok(group),
    }
}

fn rate_name(key: &str) -> Result<RateName, String> {
    const KEYS: [&str; 7] =
        ["name", "keys", "addresses", "trusted", "kinds", "times", "connections_per_address_max"];
    let found = RateName::all().find(|(_, name)| *name == key);
    found.map(|(name, _)| name).ok_or_else(|| {
        let known = KEYS.into_iter().chain(RateName::all().map(|(_, key)| key));
        format!("unknown{}", did_you_mean(key, known))
    })
}

fn name_of(value: &TypedValue) -> Result<String, String> {
    let name = String::read(value)?;
    let is_good = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-_".contains(c);
    if name == RESERVED {
        return Err(format!("{name:?} stands for the clients without rates; choose another name"));
    }
    let is_short = (1..=NAME_CHARS_MAX).contains(&name.len());
    if is_short && name.chars().all(is_good) {
        return Ok(name);
    }
    wanted("1 to 32 small letters, digits, - and _", value)
}

fn factor(value: &TypedValue) -> Result<RateFactor, String> {
    let number = match value {
        TypedValue::Whole(number) => *number as f64,
        TypedValue::Fraction(number) => *number,
        _ => f64::NAN,
    };
    if !(0.001..=TIMES_MAX).contains(&number) {
        return wanted(
            "a number from 0.001 to 1000, such as 10 or 0.1; for no rates, use spared_addresses or \
             spared_keys",
            value,
        );
    }
    Ok(RateFactor((number * 1_000.0).round() as u32))
}

fn show_factor(RateFactor(thousandths): RateFactor) -> String {
    (f64::from(thousandths) / 1_000.0).to_string()
}

fn rate(value: &TypedValue) -> Result<Option<Rate>, String> {
    let rate = Option::<Rate>::read(value)?;
    let is_large = rate.is_some_and(|rate| rate.per_minute.max(rate.at_once) > ANY);
    if is_large { wanted("numbers of at most 1000000000000", value) } else { Ok(rate) }
}

fn connections(value: &TypedValue) -> Result<usize, String> {
    match usize::read(value)? {
        max @ 1..=1_000_000 => Ok(max),
        _ => wanted("a number from 1 to 1000000", value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<TypedRateGroups, String> {
        SettingType::read(&TypedValue::Bare(text.into()))
    }

    #[test]
    fn groups_are_read_and_shown() {
        let text = "[{ name = \"members\", keys = [\"@m.txt\"], times = 10 }, \
                    { name = \"tor-1\", addresses = [\"192.0.2.0/24\"], times = 0.1, \
                    events_per_key = [0, 0], rows_per_address = [5, 6], \
                    connections_per_address_max = 1000 }, \
                    { name = \"wraps\", kinds = [\"1059\"], events_per_address = [30, 60] }, \
                    { name = \"known\", trusted = true, times = 2 }]";
        assert_eq!(read(text).unwrap().show(), text);
        assert_eq!(read("[]").unwrap().show(), "[]");
    }

    #[test]
    fn a_faulty_group_is_refused_by_what_is_wrong() {
        let many = |count| {
            let group = |n| format!("{{ name = \"g{n}\", keys = [], times = 2 }}");
            format!("[{}]", (0..count).map(group).collect::<Vec<_>>().join(", "))
        };
        assert!(read(&many(32)).is_ok());
        for (text, fault) in [
            (&*many(33), "33 groups"),
            ("7", "a group like"),
            ("[{ keys = [], times = 2 }]", "without `name`"),
            ("[{ name = \"A\", keys = [], times = 2 }]", "small letters"),
            ("[{ name = \"spared\", keys = [], times = 2 }]", "without rates"),
            ("[{ name = \"a\", keys = [] }]", "changes nothing"),
            ("[{ name = \"a\", times = 2 }]", "names no clients"),
            ("[{ name = \"a\", keys = [], times = 0 }]", "0.001 to 1000"),
            ("[{ name = \"a\", keys = [], times = nan }]", "0.001 to 1000"),
            ("[{ name = \"a\", keys = [], times = 1001 }]", "0.001 to 1000"),
            ("[{ name = \"a\", keys = [], timse = 2 }]", "did you mean `times`?"),
            ("[{ name = \"a\", keys = [], events_per_key = [1000000000001, 1] }]", "at most"),
            ("[{ name = \"a\", keys = [], events_per_key = [1, 0] }]", "two whole numbers"),
            ("[{ name = \"a\", kinds = [1] }]", "neither events_per_address"),
            ("[{ name = \"a\", kinds = [1], times = 2 }]", "can only have"),
            ("[{ name = \"a\", kinds = [1], rows_per_address = [1, 1] }]", "can only have"),
            ("[{ name = \"a\", keys = [], connections_per_address_max = 9 }]", "without addresses"),
            ("[{ name = \"a\", addresses = [], connections_per_address_max = 0 }]", "from 1"),
            (
                "[{ name = \"a\", keys = [], times = 2 }, { name = \"a\", keys = [], times = 2 }]",
                "two groups",
            ),
        ] {
            let said = read(text).unwrap_err();
            assert!(said.contains(fault), "{text}: {said}");
        }
    }

    #[test]
    fn entries_are_checked_with_their_setting() {
        let mut texts = FileTexts::new();
        let wrong =
            read("[{ name = \"a\", keys = [\"npub1x\"], addresses = [\"@gone\"], times = 2 }]");
        let faults = wrong.unwrap().read(Path::new("/nowhere"), &mut texts).unwrap_err();
        assert_eq!(faults.len(), 2, "{faults:?}");
        assert!(faults.iter().all(|fault| fault.starts_with("[rates] `groups`: ")), "{faults:?}");
    }
}
