//! The fields of a form, as a browser sends them, and of the query of a URL.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

/// Maximum number of fields that are read.
const FIELDS_MAX: usize = 64;

/// Characters that are escaped in a query.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// The fields, in their order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct FormFields(Vec<(String, String)>);

impl FormFields {
    /// Parses `application/x-www-form-urlencoded`. Bytes that are no UTF-8 are replaced.
    pub(super) fn parse(text: &str) -> Self {
        let decode = |text: &str| {
            let spaced = text.replace('+', " ");
            percent_decode_str(&spaced).decode_utf8_lossy().into_owned()
        };
        let pairs = text.split('&').filter(|pair| !pair.is_empty()).take(FIELDS_MAX);
        let fields = pairs.map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            (decode(name), decode(value))
        });
        Self(fields.collect())
    }

    /// The value of a field without spaces at its ends. Empty if there is no such field.
    pub(super) fn get(&self, name: &str) -> &str {
        let found = self.0.iter().find(|(known, _)| known == name);
        found.map_or("", |(_, value)| value.trim())
    }

    /// The value of a field. `None` if the field is missing or empty.
    pub(super) fn filled(&self, name: &str) -> Option<&str> {
        Some(self.get(name)).filter(|value| !value.is_empty())
    }
}

/// Returns the query of a URL with these fields. Empty fields are left out.
pub(super) fn query(fields: &[(&str, &str)]) -> String {
    let filled = fields.iter().filter(|(_, value)| !value.is_empty());
    let pairs: Vec<String> = filled
        .map(|(name, value)| format!("{name}={}", utf8_percent_encode(value, ESCAPED)))
        .collect();
    if pairs.is_empty() { String::default() } else { format!("?{}", pairs.join("&")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_read_as_a_browser_sends_them() {
        let fields = FormFields::parse("a=b+c%2B&a=second&%C3%BC=%FF&empty&x==1");
        assert_eq!(fields.get("a"), "b c+");
        assert_eq!((fields.get("\u{fc}"), fields.get("x")), ("\u{fffd}", "=1"));
        assert_eq!((fields.filled("empty"), fields.filled("none")), (None, None));
        let sent = query(&[("after", "ban key:ab<&"), ("none", ""), ("b", "\u{fc}")]);
        assert_eq!(sent, "?after=ban%20key%3Aab%3C%26&b=%C3%BC");
        assert_eq!(FormFields::parse(&sent[1..]).get("after"), "ban key:ab<&");
        assert_eq!(query(&[("none", "")]), "");
        let many = "a=1&".repeat(1_000) + "b=2";
        assert_eq!(FormFields::parse(&many).get("b"), "");
    }
}
