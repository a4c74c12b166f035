//! The record in a message of a relay or a client.

/// Returns the record of a line: the inner record if the line is a message (an array of strings and
/// a record), otherwise the line itself.
pub(super) fn record_of(line: &[u8]) -> &[u8] {
    message(line).unwrap_or(line)
}

fn message(line: &[u8]) -> Option<&[u8]> {
    let mut rest = line.strip_prefix(b"[")?.strip_suffix(b"]")?.trim_ascii();
    while let Some(text) = rest.strip_prefix(b"\"") {
        let mut escaped = false;
        let end = text.iter().position(|&byte| {
            let ends = byte == b'"' && !escaped;
            escaped = byte == b'\\' && !escaped;
            ends
        })?;
        rest = text[end + 1..].trim_ascii_start().strip_prefix(b",")?.trim_ascii_start();
    }
    (rest.starts_with(b"{") && rest.ends_with(b"}")).then_some(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_record_of_a_message_is_found() {
        for (line, record) in [
            ("{\"a\":1}", "{\"a\":1}"),
            ("[\"EVENT\",{\"a\":1}]", "{\"a\":1}"),
            ("[ \"EVENT\" , \"s\\\"{\" , {\"a\":[1]} ]", "{\"a\":[1]}"),
            ("[\"EOSE\",\"s\"]", "[\"EOSE\",\"s\"]"),
            ("[\"EVENT\",{}", "[\"EVENT\",{}"),
            ("[\"EVENT", "[\"EVENT"),
            ("[1,{}]", "[1,{}]"),
        ] {
            assert_eq!(record_of(line.as_bytes()), record.as_bytes(), "{line}");
        }
    }
}
