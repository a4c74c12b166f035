//! The line with which a plugin answers.

use hark_codec::hex;
use hark_codec::record::Id;
use serde_json::Value;

use crate::failure::PluginFailure;

/// Maximum length of a plugin's text in a message or in the log, in bytes.
const TEXT_BYTES_MAX: usize = 300;

/// A plugin's decision about an event. A refusal has the plugin's text for the sender, which may be
/// empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PluginDecision {
    /// The event passes.
    Accept,
    /// The event is refused.
    Reject(String),
    /// The event is refused, but its sender is told that the event was accepted.
    ShadowReject(String),
}

/// Returns the decision in a line about the event `id`. `None` if the line is not JSON: a plugin's
/// other output is skipped.
pub(crate) fn parse(line: &[u8], id: &Id) -> Option<Result<PluginDecision, PluginFailure>> {
    let answer: Value = serde_json::from_slice(line).ok()?;
    let text = |name: &str| answer.get(name).and_then(Value::as_str);
    let garbage = || PluginFailure::Garbage(shortened(&String::from_utf8_lossy(line)));
    let (Some(about), Some(action)) = (text("id"), text("action")) else {
        return Some(Err(garbage()));
    };
    if hex::decode_32(about.as_bytes()) != Some(*id) {
        return Some(Err(PluginFailure::OtherEvent(shortened(about))));
    }
    let msg = || text("msg").map(shortened).unwrap_or_default();
    Some(match action {
        "accept" => Ok(PluginDecision::Accept),
        "reject" => Ok(PluginDecision::Reject(msg())),
        "shadowReject" => Ok(PluginDecision::ShadowReject(msg())),
        _ => Err(garbage()),
    })
}

/// Returns a plugin's text as one line of limited length.
pub(crate) fn shortened(text: &str) -> String {
    let text = text.trim();
    let mut end = text.len().min(TEXT_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let line: String = text[..end].chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let line = line.trim_end();
    if end < text.len() { format!("{line}…") } else { line.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_read_and_all_other_output_is_not_taken_for_one() {
        let id = [0xab; 32];
        let about = |rest: &str| format!("{{\"id\":\"{}\"{rest}}}", "ab".repeat(32));
        let read = |line: &str| parse(line.as_bytes(), &id);
        assert_eq!(read(&about(",\"action\":\"accept\"")), Some(Ok(PluginDecision::Accept)));
        assert_eq!(
            read(&about(",\"action\":\"reject\",\"msg\":\"blocked: x\"")),
            Some(Ok(PluginDecision::Reject("blocked: x".into())))
        );
        for msg in ["", ",\"msg\":null", ",\"msg\":7", ",\"msg\":\"\""] {
            let line = about(&format!(",\"action\":\"shadowReject\"{msg}"));
            assert_eq!(read(&line), Some(Ok(PluginDecision::ShadowReject(String::new()))));
        }
        for skipped in ["", "\n", "debugging", "{", "\u{fffd}"] {
            assert_eq!(read(skipped), None, "{skipped}");
        }
        let other = format!("{{\"id\":\"{}\",\"action\":\"accept\"}}", "cd".repeat(32));
        assert!(matches!(read(&other), Some(Err(PluginFailure::OtherEvent(_)))));
        for wrong in ["7", "[]", "{}", &about(""), &about(",\"action\":\"maybe\"")] {
            assert!(matches!(read(wrong), Some(Err(PluginFailure::Garbage(_)))), "{wrong}");
        }
    }

    #[test]
    fn a_text_becomes_one_short_line() {
        assert_eq!(shortened(" a\nb\u{1b} "), "a b");
        assert_eq!(shortened(&"ü".repeat(1_000)).len(), TEXT_BYTES_MAX + "…".len());
    }
}
