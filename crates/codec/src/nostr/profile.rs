//! A profile (kind 0). The event's content is a JSON object. Only its members with string values
//! are read.

use super::read::JsonReader;

/// Calls `each` with the unescaped key and value of each member of a JSON object whose value is a
/// string. Stops at the first invalid JSON. Returns whether the whole object is valid.
pub fn strings(object: &str, mut each: impl FnMut(&str, &str)) -> bool {
    let mut read = || {
        let mut reader = JsonReader::new(object.as_bytes()).ok()?;
        let (mut scratch, mut first) = (String::new(), true);
        reader.skip_space();
        if !reader.eat(b'{') {
            return None;
        }
        while reader.next_item(&mut first, b'}').ok()? {
            scratch.clear();
            let key = reader.key(&mut scratch).ok()?;
            if reader.peek() == b'"' {
                let value = reader.string(&mut scratch).ok()?;
                each(key.get(object, &scratch), value.get(object, &scratch));
            } else {
                reader.skip_value(&mut scratch).ok()?;
            }
        }
        reader.end().ok()
    };
    read().is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(object: &str) -> (Vec<(String, String)>, bool) {
        let mut all = Vec::new();
        let whole = strings(object, |key, value| all.push((key.to_owned(), value.to_owned())));
        (all, whole)
    }

    #[test]
    fn strings_are_passed_and_the_rest_is_skipped() {
        let (all, whole) = read(r#" {"name":"a\"b","n":1,"o":{"x":["y"]},"é":"ü" } "#);
        let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        assert_eq!(all, [pair("name", "a\"b"), pair("é", "ü")]);
        assert!(whole);
    }

    #[test]
    fn what_is_not_valid_ends_it() {
        assert_eq!(read(r#"{"name":"a","about":tru}"#).0.len(), 1);
        for bad in ["", "[]", "{\"a\":\"b\"", "{\"a\"", "plain text", "{\"a\":\"b\"} x"] {
            assert!(!read(bad).1, "{bad}");
        }
    }
}
