//! The fees of the relay, for its NIP-11 document.

use hark_server::nostr::{FeePurpose, RelayFee};

use super::setting_type::{SettingType, quoted, wanted};
use super::value::{TypedValue, did_you_mean};

impl SettingType for Vec<RelayFee> {
    fn read(value: &TypedValue) -> Result<Self, String> {
        match value.entries() {
            Some(list) => list.iter().map(fee).collect(),
            None => wanted("a list of fees in TOML", value),
        }
    }

    fn show(&self) -> String {
        let fees: Vec<String> = self.iter().map(show_fee).collect();
        format!("[{}]", fees.join(", "))
    }
}

fn fee(value: &TypedValue) -> Result<RelayFee, String> {
    const KEYS: [&str; 5] = ["for", "amount", "unit", "period_s", "kinds"];
    let TypedValue::Table(table) = value else {
        let what = "a fee like { for = \"admission\", amount = 1000000, unit = \"msats\" }";
        return wanted(what, value);
    };
    let (mut purpose, mut amount, mut unit, mut period_s, mut kinds) =
        (None, None, None, None, Vec::new());
    for (key, line, value) in table {
        let read = match key.as_str() {
            "for" => purpose_of(value).map(|read| purpose = Some(read)),
            "amount" => u64::read(value).map(|read| amount = Some(read)),
            "unit" => Option::<String>::read(value).map(|read| unit = read),
            "period_s" => u64::read(value).map(|read| period_s = Some(read)),
            "kinds" => SettingType::read(value).map(|read| kinds = read),
            _ => Err(format!("unknown{}", did_you_mean(key, KEYS.into_iter()))),
        };
        read.map_err(|fault| format!("`{key}` of a fee, line {line}: {fault}"))?;
    }
    Ok(RelayFee {
        purpose: purpose.ok_or("has a fee without `for`, e.g. \"admission\"")?,
        amount: amount.ok_or("has a fee without `amount`, e.g. 1000000")?,
        unit: unit.ok_or("has a fee without `unit`, e.g. \"msats\"")?,
        period_s,
        kinds,
    })
}

fn purpose_of(value: &TypedValue) -> Result<FeePurpose, String> {
    let name = String::read(value)?;
    let found = FeePurpose::ALL.into_iter().find(|purpose| purpose.name() == name);
    found.ok_or_else(|| format!("{name:?} is not admission, subscription or publication"))
}

fn show_fee(fee: &RelayFee) -> String {
    let RelayFee { purpose, amount, unit, period_s, kinds } = fee;
    let (purpose, unit) = (quoted(purpose.name()), quoted(unit));
    let period = period_s.map(|period_s| format!(", period_s = {period_s}")).unwrap_or_default();
    let of_kinds = format!(", kinds = {}", kinds.show());
    let of_kinds = if kinds.is_empty() { "" } else { &of_kinds };
    format!("{{ for = {purpose}, amount = {amount}, unit = {unit}{period}{of_kinds} }}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fees_are_read_and_shown() {
        let read = |text: &str| Vec::<RelayFee>::read(&TypedValue::Bare(text.into()));
        let text = "[{ for = \"subscription\", amount = 5, unit = \"sats\", period_s = 60 }, \
                    { for = \"publication\", amount = 1, unit = \"msats\", kinds = [4] }]";
        assert_eq!(read(text).unwrap().show(), text);
        for (text, fault) in [
            ("[{ amount = 1, unit = \"sats\" }]", "`for`"),
            ("[{ for = \"admission\", unit = \"sats\" }]", "`amount`"),
            ("[{ for = \"admission\", amount = 1 }]", "`unit`"),
            ("[{ for = \"love\", amount = 1, unit = \"sats\" }]", "love"),
            ("[{ price = 1 }]", "unknown"),
            ("7", "a fee like"),
        ] {
            assert!(read(text).unwrap_err().contains(fault), "{text}");
        }
    }
}
