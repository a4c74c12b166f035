//! A value as typed in a file or in the environment.

use std::borrow::Cow;
use std::fmt;
use std::path::PathBuf;

use toml::de::{DeTable, DeValue};

/// Where a value was typed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ValueOrigin {
    File { path: PathBuf, line: usize },
    Environment(String),
}

impl fmt::Display for ValueOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { path, line } => write!(f, "{}:{line}", path.display()),
            Self::Environment(name) => write!(f, "environment variable {name}"),
        }
    }
}

/// A value as typed.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum TypedValue {
    Text(String),
    /// Text from the environment, where every value is text.
    Bare(String),
    Whole(i64),
    Fraction(f64),
    Switch(bool),
    List(Vec<TypedValue>),
    /// A table in an array of tables, with the line of each key.
    Table(Vec<(String, usize, TypedValue)>),
    Other(&'static str),
}

impl TypedValue {
    /// Returns the entries of a list; `None` for other values. In the environment a list is written
    /// as in a file, `[4, 1059]`, or as entries separated by commas.
    pub(crate) fn entries(&self) -> Option<Cow<'_, [Self]>> {
        let text = match self {
            Self::List(entries) => return Some(entries.into()),
            Self::Bare(text) => text.trim(),
            _ => return None,
        };
        if text.starts_with('[') {
            return list_in_toml(text).map(Cow::Owned);
        }
        if text.starts_with(['"', '\'']) {
            return list_in_toml(&format!("[{text}]")).map(Cow::Owned);
        }
        let entries = text.split(',').map(str::trim).filter(|entry| !entry.is_empty());
        Some(entries.map(|entry| Self::Bare(entry.into())).collect())
    }
}

fn list_in_toml(text: &str) -> Option<Vec<TypedValue>> {
    let text = format!("list = {text}");
    let document = DeTable::parse(&text).ok()?;
    let mut values = document.get_ref().values();
    let (Some(list), None) = (values.next(), values.next()) else { return None };
    match convert(list.get_ref(), &|at| 1 + text[..at].matches('\n').count()) {
        TypedValue::List(entries) => Some(entries),
        _ => None,
    }
}

/// Converts a value of TOML. `line_of` returns the line of a position.
pub(super) fn convert(value: &DeValue<'_>, line_of: &dyn Fn(usize) -> usize) -> TypedValue {
    match value {
        DeValue::String(text) => TypedValue::Text(text.to_string()),
        DeValue::Integer(number) => i64::from_str_radix(number.as_str(), number.radix())
            .map_or(TypedValue::Other("a number that is too large"), TypedValue::Whole),
        DeValue::Boolean(switch) => TypedValue::Switch(*switch),
        DeValue::Array(list) => {
            TypedValue::List(list.iter().map(|value| convert(value.get_ref(), line_of)).collect())
        }
        DeValue::Float(number) => {
            number.as_str().parse().map_or(TypedValue::Other("a fraction"), TypedValue::Fraction)
        }
        DeValue::Datetime(_) => TypedValue::Other("a date"),
        DeValue::Table(table) => TypedValue::Table(
            table
                .iter()
                .map(|(key, value)| {
                    let line = line_of(key.span().start);
                    (key.get_ref().to_string(), line, convert(value.get_ref(), line_of))
                })
                .collect(),
        ),
    }
}

/// Returns `; did you mean ...?`, or a list of all known names if no name is similar.
pub(crate) fn did_you_mean<'a>(
    typed: &str,
    known: impl Iterator<Item = &'a str> + Clone,
) -> String {
    let nearest = known.clone().map(|name| (strsim::levenshtein(typed, name), name)).min();
    match nearest {
        Some((steps, name)) if steps <= 2 + name.len() / 4 => format!("; did you mean `{name}`?"),
        _ => format!("; there are {}", known.collect::<Vec<_>>().join(", ")),
    }
}
