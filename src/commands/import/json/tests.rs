//! Forms of JSON, and the records in each.

use super::*;

/// A reader that returns a few bytes at a time.
struct Drip<'a>(&'a [u8], usize);

impl Read for Drip<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let size = into.len().min(self.1);
        self.0.read(&mut into[..size])
    }
}

#[test]
fn an_object_without_an_end_is_not_kept() {
    for (begin, rest) in [("{\"a\":\"", "x"), ("{\"a\":", "\n"), ("{\"a\":[\"", "\\\""), ("[", " ")]
    {
        let text = format!("{begin}{}", rest.repeat(4 << 20));
        let mut lines = RecordLines::new(text.as_bytes());
        let (mut into, mut kept) = (vec![0; 8 << 10], 0);
        while lines.read(&mut into).unwrap() > 0 {
            kept = kept.max(lines.lines.capacity());
        }
        assert!(kept < 1 << 20, "{kept} bytes were kept of {begin}");
    }
}

/// Returns the output for a text, and the number of line breaks in the output. Asserts that the
/// output does not depend on the size of the reads.
fn read(text: &str) -> (String, usize) {
    let mut all = Vec::new();
    for drip in [1, 2, 7, 1 << 20] {
        let mut got = Vec::new();
        RecordLines::new(Drip(text.as_bytes(), drip)).read_to_end(&mut got).unwrap();
        all.push(String::from_utf8(got).unwrap());
    }
    assert!(all.iter().all(|got| *got == all[0]), "{:.200}: {:.200}", text, all[0]);
    let breaks = all[0].matches('\n').count();
    (all.remove(0), breaks)
}

/// Asserts that a text has these records, each on the line of its first byte, counted from 0.
fn assert_records(text: &str, expected: &[(usize, &str)]) {
    let (got, breaks) = read(text);
    assert_eq!(breaks, text.matches('\n').count(), "{text:?}: {got:?}");
    let (mut line, mut found) = (0, Vec::new());
    for part in got.split_inclusive(|c: char| u8::try_from(c).is_ok_and(is_end)) {
        let record = part.trim_matches(|c: char| c.is_whitespace() || c == '\u{1e}');
        if !record.is_empty() {
            found.push((line, record.to_owned()));
        }
        line += usize::from(part.ends_with('\n'));
    }
    let found: Vec<_> = found.iter().map(|(line, record)| (*line, record.as_str())).collect();
    assert_eq!(found, expected, "{text:?}: {got:?}");
}

#[test]
fn records_are_found_wherever_they_are_with_their_lines() {
    for (text, records) in [
        ("", &[][..]),
        ("\u{feff}", &[]),
        ("[]", &[]),
        (" [\n]\n", &[]),
        // One record per line, and several.
        ("\u{feff}{\"a\":1}\n{}", &[(0, "{\"a\":1}"), (1, "{}")]),
        ("\n  {\"a\":[1]}\r\n\n{}\n", &[(1, "{\"a\":[1]}"), (3, "{}")]),
        ("{}{} {},\n{}", &[(0, "{}"), (0, "{}"), (0, "{}"), (1, "{}")]),
        ("\u{1e}{}\n\u{1e}{}\n", &[(0, "{}"), (1, "{}")]),
        // Records over several lines.
        ("{\n \"a\": [[1]]\n}\n{\n}", &[(0, "{  \"a\": [[1]] }"), (3, "{ }")]),
        (
            "{\n\"a\":\n{\n\"b\":[\n[\n],\n[]]}}\n{}",
            &[(0, "{ \"a\": { \"b\":[ [ ], []]}}"), (7, "{}")],
        ),
        // Arrays of records, and braces in strings.
        ("[{\"a\":1},{\"b\":\"x]},{\\\"\"}]", &[(0, "{\"a\":1}"), (0, "{\"b\":\"x]},{\\\"\"}")]),
        ("[\n  {\n \"a\": 1\n},\n\n{}\n]\n", &[(1, "{  \"a\": 1 }"), (5, "{}")]),
        ("[{}][{}]\n[[{}],[]]", &[(0, "{}"), (0, "{}"), (1, "{}")]),
        // Messages, one per line and in arrays.
        ("[ \"EVENT\",{}]\n[\"EOSE\"]\n", &[(0, "[\"EVENT\",{}]"), (1, "[\"EOSE\"]")]),
        ("[[\"EVENT\",\"]\",{}],\n [\"EOSE\"]]", &[(0, "[\"EVENT\",\"]\",{}]"), (1, "[\"EOSE\"]")]),
        // Objects around an array.
        ("{\"events\":[{\"a\":1},{}]}", &[(0, "{\"a\":1}"), (0, "{}")]),
        (
            "{\"id\":\"{[\",\n\"n\":[1,\"]\"],\"o\":{\"list\":\n[\n{\"a\":[]},\n{}]},\"z\":true}\n{}",
            &[(3, "{\"a\":[]}"), (4, "{}"), (5, "{}")],
        ),
        ("{\"m\":[{}]}\n{\"m\":[{}],\"n\":[{}]}", &[(0, "{}"), (1, "{}"), (1, "{}")]),
        ("[{\"m\":[{}]},{\"m\":[{}]}]", &[(0, "{}"), (0, "{}")]),
        (
            "{\"m\":[[\"EVENT\",{\"a\":1}],[\"EVENT\",{}]]}",
            &[(0, "{\"a\":1}"), (0, "[\"EVENT\",{}]")],
        ),
        // Records that contain an array of objects.
        (
            "{\"c\":\"\\\"\",\"sig\":\"\",\"seen\":[{\"a\":1}]}\n{}",
            &[(0, "{\"c\":\"\\\"\",\"sig\":\"\",\"seen\":[{\"a\":1}]}"), (1, "{}")],
        ),
        ("{\"o\":{\"sig\":1},\"a\":\"sig\",\"m\":[{}]}", &[(0, "{}")]),
        // Text that is not JSON, line by line.
        ("text\n{}\nmore", &[(0, "text"), (1, "{}"), (2, "more")]),
        ("{\"a\":\"cut\n{}\n", &[(0, "{\"a\":\"cut"), (1, "{}")]),
        (
            "{\"a\":1\n{}\n[\"x\",1\n[\"y\"]",
            &[(0, "{\"a\":1"), (1, "{}"), (2, "[\"x\",1"), (3, "[\"y\"]")],
        ),
        ("{\"a\":1,\n{}\n", &[(0, "{\"a\":1,"), (1, "{}")]),
        ("[\n{\"a\":1\n{},\n{}]", &[(1, "{\"a\":1"), (2, "{}"), (3, "{}")]),
        ("{}}\n{}", &[(0, "{}"), (0, "}"), (1, "{}")]),
        // An object around an array that is cut off.
        (
            "{\"m\":[{\"a\":1}],\"n\":\"cut\n{}\n{\"b\":\"{\"}",
            &[(0, "{\"a\":1}"), (0, "{"), (1, "{}"), (2, "{\"b\":\"{\"}")],
        ),
        ("{\"m\":[{}],\"n\":\"cut\\\n[\"x\"]", &[(0, "{}"), (0, "{"), (1, "[\"x\"]")]),
        ("{\"m\":[{}]\n{}\n{}", &[(0, "{}"), (1, "{"), (1, "{}"), (2, "{}")]),
        ("{\"m\":[{}],\n\n[\"x\"]\n{}", &[(0, "{}"), (2, "{"), (2, "[\"x\"]"), (3, "{}")]),
        ("{\"m\":[{}],\"n\":1\n{}", &[(0, "{}"), (1, "{"), (1, "{}")]),
        ("{\"m\":[{}],\"n\":\n{\"o\":[\n{}]}}\n{}", &[(0, "{}"), (2, "{}"), (3, "{}")]),
        ("[{},7]", &[(0, "{}"), (0, "7")]),
        ("[2]", &[(0, "2")]),
        ("[", &[(0, "[")]),
        ("[{\"a\"", &[(0, "{\"a\"")]),
    ] {
        assert_records(text, records);
    }
    assert_eq!(read("\u{fe}x").0, "\u{fe}x");
}

#[test]
fn little_is_held_back() {
    // The records in an object's array are found only if the array begins within the limit.
    let long = "x".repeat(HELD_BYTES_MAX);
    let (near, far) = (
        format!("{{\"a\":\"{}\",\"m\":[{{}}]}}", &long[40..]),
        format!("{{\"a\":\"{long}\",\"m\":[{{}}]}}"),
    );
    assert_records(&near, &[(0, "{}")]);
    assert_records(&far, &[(0, far.as_str())]);
    let deep = format!("{}{}", "[".repeat(5_000), "]".repeat(5_000));
    assert_records(&format!("{deep}\n{{}}"), &[(1, "{}")]);
    let mut lines = RecordLines::new(Drip(b"[{\"a\":\"1\"},{\"a\":", 1 << 20));
    let mut got = [0; 100];
    let size = lines.read(&mut got).unwrap();
    assert_eq!(&got[..size], b"{\"a\":\"1\"}\x1e ", "what is whole comes at once");
}
