//! Looks for a field in the beginning of a JSON object.

/// Whether the beginning of an object has a field of this name, outside of its inner objects.
pub(super) fn has_field(object: &[u8], name: &[u8]) -> bool {
    let mut depth = 0;
    let mut rest = object;
    while let Some((byte, behind)) = rest.split_first() {
        rest = behind;
        match byte {
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth -= 1,
            b'"' => {
                let text = string(behind);
                rest = behind.get(text.len() + 1..).unwrap_or_default();
                let is_name = rest.trim_ascii_start().starts_with(b":");
                if depth == 1 && is_name && text == name {
                    return true;
                }
            }
            _ => {}
        }
    }
    false
}

/// Returns the bytes before the quotation mark that ends a string.
fn string(text: &[u8]) -> &[u8] {
    let mut escaped = false;
    let is_end = |byte: &u8| {
        let ends = *byte == b'"' && !escaped;
        escaped = *byte == b'\\' && !escaped;
        ends
    };
    let end = text.iter().position(is_end).unwrap_or(text.len());
    &text[..end]
}
