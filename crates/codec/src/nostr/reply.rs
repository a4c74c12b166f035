//! The messages of the relay: each function appends one message to a buffer.
//!
//! ```
//! use hark_codec::nostr::reply::{EoseHint, write_eose, write_event};
//!
//! let mut out = Vec::new();
//! write_event(&mut out, "home", b"{}");
//! assert_eq!(out, br#"["EVENT","home",{}]"#);
//! out.clear();
//! write_eose(&mut out, "home", Some(EoseHint::Finish));
//! assert_eq!(out, br#"["EOSE","home",["finish"]]"#);
//! ```

use std::fmt::{self, Display, Write as _};

use super::json::{ByteSink, put_escaped, put_string, put_u64};
use crate::hex;
use crate::record::Id;

/// A hint about the stored events, sent with EOSE (NIP-67).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EoseHint {
    /// All matching events have been sent.
    Finish,
    /// Not all matching events have been sent.
    More,
}

/// Appends `["OK","<id>",<accepted>,"<message>"]`.
pub fn write_ok(out: &mut Vec<u8>, id: &Id, accepted: bool, message: impl Display) {
    out.put(b"[\"OK\",\"");
    out.put(&hex::encode_32(id));
    out.put(if accepted { b"\",true," } else { b"\",false," });
    put_display(out, message);
    out.put(b"]");
}

/// Appends `["EOSE","<sub>"]` or, with a hint, `["EOSE","<sub>",["finish"]]`.
pub fn write_eose(out: &mut Vec<u8>, sub: &str, hint: Option<EoseHint>) {
    out.put(b"[\"EOSE\",");
    put_string(out, sub);
    out.put(match hint {
        None => b"]",
        Some(EoseHint::Finish) => b",[\"finish\"]]",
        Some(EoseHint::More) => b",[\"more\"]]",
    });
}

/// Appends `["CLOSED","<sub>","<message>"]`.
pub fn write_closed(out: &mut Vec<u8>, sub: &str, message: impl Display) {
    write_about(out, b"[\"CLOSED\",", sub, message);
}

/// Appends `["NOTICE","<message>"]`.
pub fn write_notice(out: &mut Vec<u8>, message: impl Display) {
    out.put(b"[\"NOTICE\",");
    put_display(out, message);
    out.put(b"]");
}

/// Appends `["AUTH","<challenge>"]` (NIP-42).
pub fn write_auth(out: &mut Vec<u8>, challenge: &str) {
    out.put(b"[\"AUTH\",");
    put_string(out, challenge);
    out.put(b"]");
}

/// Appends `["COUNT","<sub>",{"count":n}]` (NIP-45). If `approximate` is true, adds
/// `"approximate":true`; if `hll` is given, adds its 256 registers as `"hll":"<hex>"`.
pub fn write_count(
    out: &mut Vec<u8>,
    sub: &str,
    count: u64,
    approximate: bool,
    hll: Option<&[u8; 256]>,
) {
    out.put(b"[\"COUNT\",");
    put_string(out, sub);
    out.put(b",{\"count\":");
    put_u64(out, count);
    if approximate {
        out.put(b",\"approximate\":true");
    }
    if let Some(registers) = hll {
        out.put(b",\"hll\":\"");
        hex::encode_into(registers, out);
        out.put(b"\"");
    }
    out.put(b"}]");
}

/// Appends `["EVENT","<sub>",`. The caller then appends the event's JSON and `]`.
pub fn write_event_open(out: &mut Vec<u8>, sub: &str) {
    out.put(b"[\"EVENT\",");
    put_string(out, sub);
    out.put(b",");
}

/// Appends `["EVENT","<sub>",<json>]`.
pub fn write_event(out: &mut Vec<u8>, sub: &str, json: &[u8]) {
    out.reserve(json.len() + sub.len() + 16);
    write_event_open(out, sub);
    out.put(json);
    out.put(b"]");
}

/// Appends `["NEG-MSG","<sub>","<hex>"]` (NIP-77).
pub fn write_neg_msg(out: &mut Vec<u8>, sub: &str, message: &[u8]) {
    out.put(b"[\"NEG-MSG\",");
    put_string(out, sub);
    out.put(b",\"");
    hex::encode_into(message, out);
    out.put(b"\"]");
}

/// Appends `["NEG-ERR","<sub>","<message>"]` (NIP-77). If a comparison has too many events,
/// `events_max` follows as a further element.
pub fn write_neg_err(out: &mut Vec<u8>, sub: &str, message: impl Display, events_max: Option<u64>) {
    write_about(out, b"[\"NEG-ERR\",", sub, message);
    if let Some(events_max) = events_max {
        out.pop();
        out.put(b",");
        put_u64(out, events_max);
        out.put(b"]");
    }
}

/// Appends a message about a subscription.
fn write_about(out: &mut Vec<u8>, open: &[u8], sub: &str, message: impl Display) {
    out.put(open);
    put_string(out, sub);
    out.put(b",");
    put_display(out, message);
    out.put(b"]");
}

/// Appends a text as a JSON string, without first copying the text.
fn put_display(out: &mut Vec<u8>, text: impl Display) {
    out.put(b"\"");
    // A write to a buffer cannot fail.
    let _ = write!(EscapedText(out), "{text}");
    out.put(b"\"");
}

/// A buffer that escapes text for a JSON string.
struct EscapedText<'a>(&'a mut Vec<u8>);

impl fmt::Write for EscapedText<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        put_escaped(self.0, text);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(write: impl Fn(&mut Vec<u8>)) -> String {
        let mut out = Vec::new();
        write(&mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn as_the_nips_spell_them() {
        let zeros = "00".repeat(32);
        let ok = written(|out| write_ok(out, &[0; 32], true, ""));
        assert_eq!(ok, format!(r#"["OK","{zeros}",true,""]"#));
        let ok = written(|out| write_ok(out, &[0; 32], false, "invalid: \"no\""));
        assert_eq!(ok, format!(r#"["OK","{zeros}",false,"invalid: \"no\""]"#));
        let tricky = "a\"\\\n\u{1}\u{7f}é";
        let escaped = "a\\\"\\\\\\n\\u0001\u{7f}é";
        let eose = |hint| written(|out| write_eose(out, tricky, hint));
        assert_eq!(eose(None), format!(r#"["EOSE","{escaped}"]"#));
        assert_eq!(eose(Some(EoseHint::Finish)), format!(r#"["EOSE","{escaped}",["finish"]]"#));
        assert_eq!(eose(Some(EoseHint::More)), format!(r#"["EOSE","{escaped}",["more"]]"#));
        let cases = [
            (written(|out| write_closed(out, "s", "error: x")), r#"["CLOSED","s","error: x"]"#),
            (written(|out| write_notice(out, "hi")), r#"["NOTICE","hi"]"#),
            (written(|out| write_auth(out, "c")), r#"["AUTH","c"]"#),
            (written(|out| write_count(out, "s", 0, false, None)), r#"["COUNT","s",{"count":0}]"#),
            (
                written(|out| write_count(out, "s", u64::MAX, true, None)),
                r#"["COUNT","s",{"count":18446744073709551615,"approximate":true}]"#,
            ),
            (written(|out| write_event(out, "s", b"{}")), r#"["EVENT","s",{}]"#),
            (written(|out| write_neg_msg(out, "n", &[0x61, 0])), r#"["NEG-MSG","n","6100"]"#),
            (
                written(|out| write_neg_err(out, "n", "closed: x", None)),
                r#"["NEG-ERR","n","closed: x"]"#,
            ),
            (
                written(|out| write_neg_err(out, "n", "blocked: x", Some(1_000))),
                r#"["NEG-ERR","n","blocked: x",1000]"#,
            ),
        ];
        for (got, expected) in cases {
            assert_eq!(got, expected);
        }
        let hll = written(|out| write_count(out, "s", 1, false, Some(&[1; 256])));
        let registers = "01".repeat(256);
        assert_eq!(hll, format!(r#"["COUNT","s",{{"count":1,"hll":"{registers}"}}]"#));
    }
}
