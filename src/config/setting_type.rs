//! The types of settings: how a value of each type is parsed and printed.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use hark_codec::waku::ProtectedShard;
use hark_networks::waku::retention::Retention;
use hark_server::limits::Rate;
use hark_server::{ListenAddress, ranges};
use hark_store_postgres::shown;
use ipnet::IpNet;

use super::value::TypedValue;
use crate::stores::StoreAddress;

/// A type that a setting can have.
pub(super) trait SettingType: Sized {
    fn read(value: &TypedValue) -> Result<Self, String>;
    fn show(&self) -> String;
}

pub(super) fn wanted<T>(what: &str, got: &TypedValue) -> Result<T, String> {
    let got = match got {
        // `shown` hides a password: the value may be an address that was typed for the wrong
        // setting.
        TypedValue::Text(text) | TypedValue::Bare(text) => format!("{:?}", shown(text)),
        TypedValue::Whole(number) => number.to_string(),
        TypedValue::Fraction(number) => number.to_string(),
        TypedValue::Switch(switch) => switch.to_string(),
        TypedValue::List(_) => "a list".into(),
        TypedValue::Table(_) => "a table".into(),
        TypedValue::Other(what) => (*what).into(),
    };
    Err(format!("must be {what}, but is {got}"))
}

pub(super) fn quoted(text: &str) -> String {
    toml::Value::String(text.into()).to_string()
}

impl SettingType for u64 {
    fn read(value: &TypedValue) -> Result<Self, String> {
        let what = "a whole number, 0 or above";
        match value {
            TypedValue::Whole(number) => Self::try_from(*number).or_else(|_| wanted(what, value)),
            TypedValue::Bare(text) => {
                text.replace('_', "").parse().or_else(|_| wanted(what, value))
            }
            _ => wanted(what, value),
        }
    }

    fn show(&self) -> String {
        self.to_string()
    }
}

impl SettingType for u32 {
    fn read(value: &TypedValue) -> Result<Self, String> {
        Self::try_from(u64::read(value)?).or_else(|_| wanted("a smaller number", value))
    }

    fn show(&self) -> String {
        self.to_string()
    }
}

impl SettingType for u16 {
    fn read(value: &TypedValue) -> Result<Self, String> {
        Self::try_from(u64::read(value)?).or_else(|_| wanted("at most 65535", value))
    }

    fn show(&self) -> String {
        self.to_string()
    }
}

impl SettingType for Retention {
    fn read(value: &TypedValue) -> Result<Self, String> {
        let read = String::read(value)?.parse::<Self>();
        read.map_err(|error| format!("cannot be read: {error}"))
    }

    fn show(&self) -> String {
        quoted(&self.to_string())
    }
}

impl SettingType for usize {
    fn read(value: &TypedValue) -> Result<Self, String> {
        Self::try_from(u64::read(value)?).or_else(|_| wanted("a smaller number", value))
    }

    fn show(&self) -> String {
        self.to_string()
    }
}

impl SettingType for bool {
    fn read(value: &TypedValue) -> Result<Self, String> {
        match value {
            TypedValue::Switch(switch) => Ok(*switch),
            TypedValue::Bare(text) => text.parse().or_else(|_| wanted("true or false", value)),
            _ => wanted("true or false", value),
        }
    }

    fn show(&self) -> String {
        self.to_string()
    }
}

/// 0 stands for none.
impl SettingType for Option<u64> {
    fn read(value: &TypedValue) -> Result<Self, String> {
        Ok(Some(u64::read(value)?).filter(|number| *number > 0))
    }

    fn show(&self) -> String {
        self.unwrap_or(0).to_string()
    }
}

impl SettingType for String {
    fn read(value: &TypedValue) -> Result<Self, String> {
        match value {
            TypedValue::Text(text) | TypedValue::Bare(text) => Ok(text.clone()),
            _ => wanted("text in quotes", value),
        }
    }

    fn show(&self) -> String {
        quoted(self)
    }
}

/// Empty text stands for none.
impl SettingType for Option<String> {
    fn read(value: &TypedValue) -> Result<Self, String> {
        Ok(Some(String::read(value)?).filter(|text| !text.is_empty()))
    }

    fn show(&self) -> String {
        quoted(self.as_deref().unwrap_or(""))
    }
}

impl SettingType for StoreAddress {
    fn read(value: &TypedValue) -> Result<Self, String> {
        String::read(value).map(Self::new)
    }

    fn show(&self) -> String {
        quoted(&self.to_string())
    }
}

/// Empty text stands for none.
impl SettingType for Option<StoreAddress> {
    fn read(value: &TypedValue) -> Result<Self, String> {
        Ok(Option::<String>::read(value)?.map(StoreAddress::new))
    }

    fn show(&self) -> String {
        self.as_ref().map_or_else(|| quoted(""), StoreAddress::show)
    }
}

impl SettingType for PathBuf {
    fn read(value: &TypedValue) -> Result<Self, String> {
        let path = String::read(value)?;
        if path.is_empty() { wanted("a directory", value) } else { Ok(path.into()) }
    }

    fn show(&self) -> String {
        quoted(&self.to_string_lossy())
    }
}

impl SettingType for ListenAddress {
    fn read(value: &TypedValue) -> Result<Self, String> {
        let read = String::read(value).ok().and_then(|text| text.parse().ok());
        read.map_or_else(|| wanted(Self::EXAMPLES, value), Ok)
    }

    fn show(&self) -> String {
        quoted(&self.to_string())
    }
}

/// One address as text, or a list. Empty text stands for none.
impl SettingType for Vec<ListenAddress> {
    fn read(value: &TypedValue) -> Result<Self, String> {
        match value {
            TypedValue::Text(text) if text.is_empty() => return Ok(Self::new()),
            TypedValue::Text(_) => return Ok(vec![ListenAddress::read(value)?]),
            // An IPv6 address begins with `[`, as a TOML list does.
            TypedValue::Bare(text) => {
                let entries = text.split(',').map(str::trim).filter(|entry| !entry.is_empty());
                if let Ok(addresses) = entries.map(str::parse).collect() {
                    return Ok(addresses);
                }
            }
            _ => {}
        }
        match value.entries() {
            Some(entries) => entries.iter().map(ListenAddress::read).collect(),
            None => wanted(ListenAddress::EXAMPLES, value),
        }
    }

    fn show(&self) -> String {
        match self.as_slice() {
            [] => quoted(""),
            [address] => address.show(),
            several => {
                let texts: Vec<String> = several.iter().map(ListenAddress::show).collect();
                format!("[{}]", texts.join(", "))
            }
        }
    }
}

/// An IP address and a port. The name `localhost` is accepted as well, without a lookup.
impl SettingType for SocketAddr {
    fn read(value: &TypedValue) -> Result<Self, String> {
        match ListenAddress::read(value) {
            Ok(ListenAddress::Ip(addr)) => Ok(addr),
            _ => wanted("an address and port like 127.0.0.1:7777 or [::]:7777", value),
        }
    }

    fn show(&self) -> String {
        quoted(&self.to_string())
    }
}

/// Empty text stands for none.
impl SettingType for Option<SocketAddr> {
    fn read(value: &TypedValue) -> Result<Self, String> {
        match value {
            TypedValue::Text(text) | TypedValue::Bare(text) if text.is_empty() => Ok(None),
            _ => SocketAddr::read(value).map(Some),
        }
    }

    fn show(&self) -> String {
        self.map_or_else(|| quoted(""), |addr| addr.show())
    }
}

/// Addresses with ports. The default port is 53.
impl SettingType for Vec<SocketAddr> {
    fn read(value: &TypedValue) -> Result<Self, String> {
        let what = "a list of addresses of DNS servers like [\"9.9.9.9\", \"127.0.0.1:5353\"]";
        let read = |text: &String| {
            text.parse().ok().or_else(|| Some(SocketAddr::new(text.parse().ok()?, 53)))
        };
        let servers = texts(value).and_then(|texts| texts.iter().map(read).collect::<Option<_>>());
        servers.map_or_else(|| wanted(what, value), Ok)
    }

    fn show(&self) -> String {
        let servers: Vec<String> = self.iter().map(SocketAddr::show).collect();
        format!("[{}]", servers.join(", "))
    }
}

impl SettingType for Vec<IpNet> {
    fn read(value: &TypedValue) -> Result<Self, String> {
        let what = "a list of addresses and networks like [\"127.0.0.1\", \"10.0.0.0/8\"]";
        let ranges = texts(value).and_then(|texts| {
            texts.iter().map(|text| ranges::read(text).ok()).collect::<Option<_>>()
        });
        ranges.map_or_else(|| wanted(what, value), Ok)
    }

    fn show(&self) -> String {
        let ranges: Vec<String> = self.iter().map(|range| quoted(&range.to_string())).collect();
        format!("[{}]", ranges.join(", "))
    }
}

/// `[per_minute, at_once]`; [0, 0] stands for none.
impl SettingType for Option<Rate> {
    fn read(value: &TypedValue) -> Result<Self, String> {
        let what = "two whole numbers: [number a minute, number at once]";
        let numbers: Option<Vec<u64>> =
            value.entries().and_then(|list| list.iter().map(|n| u64::read(n).ok()).collect());
        match numbers.as_deref() {
            Some([0, 0]) => Ok(None),
            Some(&[per_minute, at_once]) if per_minute > 0 && at_once > 0 => {
                Ok(Some(Rate { per_minute, at_once }))
            }
            _ => wanted(what, value),
        }
    }

    fn show(&self) -> String {
        self.map_or("[0, 0]".into(), |rate| format!("[{}, {}]", rate.per_minute, rate.at_once))
    }
}

impl SettingType for Vec<String> {
    fn read(value: &TypedValue) -> Result<Self, String> {
        texts(value).map_or_else(|| wanted("a list of texts in quotes", value), Ok)
    }

    fn show(&self) -> String {
        let texts: Vec<String> = self.iter().map(|text| quoted(text)).collect();
        format!("[{}]", texts.join(", "))
    }
}

/// A list of texts.
pub(super) fn texts(value: &TypedValue) -> Option<Vec<String>> {
    value.entries()?.iter().map(|value| String::read(value).ok()).collect()
}

/// A number of milliseconds.
impl SettingType for Duration {
    fn read(value: &TypedValue) -> Result<Self, String> {
        u64::read(value).map(Self::from_millis)
    }

    fn show(&self) -> String {
        self.as_millis().to_string()
    }
}

impl SettingType for Vec<ProtectedShard> {
    fn read(value: &TypedValue) -> Result<Self, String> {
        let what =
            "a list of shards and public keys like [\"32:02…\"], a key of 66 or 130 hex digits";
        let shards = texts(value)
            .and_then(|texts| texts.iter().map(|text| text.parse().ok()).collect::<Option<_>>());
        shards.map_or_else(|| wanted(what, value), Ok)
    }

    fn show(&self) -> String {
        let shards: Vec<String> = self.iter().map(|shard| quoted(&shard.to_string())).collect();
        format!("[{}]", shards.join(", "))
    }
}

/// A list of numbers below 65,536.
fn numbers(value: &TypedValue) -> Option<Vec<u16>> {
    value.entries()?.iter().map(|number| u16::read(number).ok()).collect()
}

impl SettingType for Vec<u16> {
    fn read(value: &TypedValue) -> Result<Self, String> {
        numbers(value).map_or_else(|| wanted("a list of shards like [0, 1]", value), Ok)
    }

    fn show(&self) -> String {
        format!("{self:?}")
    }
}

impl SettingType for Vec<u32> {
    fn read(value: &TypedValue) -> Result<Self, String> {
        let kinds = numbers(value).map(|kinds| kinds.into_iter().map(u32::from).collect());
        kinds
            .map_or_else(|| wanted("a list of single kinds like [1, 7], without ranges", value), Ok)
    }

    fn show(&self) -> String {
        format!("{self:?}")
    }
}
