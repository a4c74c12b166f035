//! Reads structs from JSON objects only. A derived `Deserialize` also accepts an array of the
//! fields' values. In such an array, an added or missing value would shift all later values to
//! other fields.

use std::fmt;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

/// Reads a struct from JSON, which must be an object without trailing data.
pub fn read<'d, T: Deserialize<'d>>(json: &'d [u8]) -> Result<T, serde_json::Error> {
    let mut json = serde_json::Deserializer::from_slice(json);
    let read = object(&mut json)?;
    json.end()?;
    Ok(read)
}

/// Reads a struct from an object, for use in `deserialize_with`.
pub(crate) fn object<'d, D: Deserializer<'d>, T: Deserialize<'d>>(from: D) -> Result<T, D::Error> {
    struct ObjectVisitor<T>(PhantomData<T>);

    impl<'d, T: Deserialize<'d>> Visitor<'d> for ObjectVisitor<T> {
        type Value = T;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object")
        }

        fn visit_map<A: MapAccess<'d>>(self, fields: A) -> Result<T, A::Error> {
            T::deserialize(MapAccessDeserializer::new(fields))
        }
    }

    from.deserialize_map(ObjectVisitor(PhantomData))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Deserialize)]
    struct Pair {
        one: u8,
        two: Option<u8>,
    }

    #[test]
    fn an_array_is_no_object() {
        let read = |text: &str| read::<Pair>(text.as_bytes());
        assert_eq!(read(r#" {"two":2,"one":1} "#).unwrap(), Pair { one: 1, two: Some(2) });
        assert_eq!(read(r#"{"one":1}"#).unwrap(), Pair { one: 1, two: None });
        for text in ["[1,2]", "[]", "1", "null", r#"{"one":1}{"#, r#"{"two":2}"#, ""] {
            assert!(read(text).is_err(), "{text}");
        }
        assert!(read("[1,2]").unwrap_err().to_string().contains("expected an object"));
    }
}
