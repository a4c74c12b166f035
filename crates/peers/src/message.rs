//! Parses one message of a relay.

use std::ops::Range;

use hark_codec::hex;
use hark_codec::record::Id;
use serde_json::Value;

use crate::connection::shortened;
use crate::frames::TOO_LONG;

/// A relay's message.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum RelaySays {
    /// An event of a subscription. The range is the position of the event's JSON in the message.
    Event { subscription: String, event: Range<usize> },
    /// The relay has sent all stored events of a subscription. `finish` means that the relay has no
    /// more matching events (NIP-67).
    Eose { subscription: String, finish: bool },
    /// A subscription has ended.
    Closed { subscription: String, reason: String },
    /// The answer to an EVENT or AUTH.
    Ok { id: Id, accepted: bool, reason: String },
    /// A challenge (NIP-42).
    Auth(String),
    /// A text for people.
    Notice(String),
    /// A message of a comparison, in hex (NIP-77).
    NegMsg { comparison: String, message: String },
    /// A comparison has ended.
    NegErr { comparison: String, reason: String },
    /// A message of `bytes` bytes was too long and was skipped. `subscription` is set if the
    /// message was an event.
    TooLong { subscription: Option<String>, bytes: u64 },
    /// Any other message, which is ignored.
    Other,
}

/// Reads a message. The error is a text for people.
pub(crate) fn read(text: &str) -> Result<RelaySays, String> {
    if let Some(event) = event(text) {
        return Ok(event);
    }
    let value: Value = serde_json::from_str(text)
        .map_err(|_| format!("a message is not JSON: {}", shortened(text)))?;
    let Value::Array(parts) = value else {
        return Err(format!("a message is not an array: {}", shortened(text)));
    };
    let mut parts = parts.into_iter();
    let mut next = move || match parts.next() {
        Some(Value::String(text)) => Some(text),
        Some(Value::Bool(flag)) => Some(flag.to_string()),
        Some(Value::Array(hints)) => Some(Value::Array(hints).to_string()),
        _ => None,
    };
    let label = next().unwrap_or_default();
    let wrong = || format!("a message has the wrong form for {label}: {}", shortened(text));
    let mut field = || next().ok_or(());
    let read = match label.as_str() {
        "EOSE" => field().map(|subscription| {
            let finish = field().is_ok_and(|hints| hints.contains("\"finish\""));
            RelaySays::Eose { subscription, finish }
        }),
        "CLOSED" => field().map(|subscription| RelaySays::Closed {
            subscription,
            reason: shortened(&field().unwrap_or_default()),
        }),
        "OK" => field().and_then(|id| {
            let id = hex::decode_32(id.as_bytes()).ok_or(())?;
            let accepted = field()? == "true";
            Ok(RelaySays::Ok { id, accepted, reason: shortened(&field().unwrap_or_default()) })
        }),
        "AUTH" => field().map(RelaySays::Auth),
        "NOTICE" => field().map(|notice| RelaySays::Notice(shortened(&notice))),
        "NEG-MSG" => {
            field().and_then(|comparison| Ok(RelaySays::NegMsg { comparison, message: field()? }))
        }
        "NEG-ERR" => field().map(|comparison| RelaySays::NegErr {
            comparison,
            reason: shortened(&field().unwrap_or_default()),
        }),
        label if label == TOO_LONG.as_str() => field().and_then(|bytes| {
            let bytes = bytes.parse().map_err(|_| ())?;
            let beginning = field()?;
            let subscription =
                subscription(&beginning).map(|(subscription, _)| subscription.into());
            Ok(RelaySays::TooLong { subscription, bytes })
        }),
        _ => Ok(RelaySays::Other),
    };
    read.map_err(|()| wrong())
}

/// Reads an EVENT message up to the event, which is not parsed. Returns `None` for any other
/// message.
fn event(text: &str) -> Option<RelaySays> {
    let (subscription, rest) = subscription(text)?;
    let rest = rest.trim_start().strip_prefix(',')?;
    let event = rest.trim_end().strip_suffix(']')?.trim();
    let from = event.as_ptr() as usize - text.as_ptr() as usize;
    Some(RelaySays::Event { subscription: subscription.into(), event: from..from + event.len() })
}

/// Returns the subscription of an EVENT message, and the text after the subscription.
fn subscription(text: &str) -> Option<(&str, &str)> {
    let rest = text.trim_start().strip_prefix('[')?.trim_start().strip_prefix("\"EVENT\"")?;
    let rest = rest.trim_start().strip_prefix(',')?.trim_start().strip_prefix('"')?;
    // The ids that this client gives its subscriptions contain no characters that need an escape.
    rest.split_once('"').filter(|(subscription, _)| !subscription.contains('\\'))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn messages_are_read_however_they_are_spaced() {
        for text in [r#"["EVENT","s1",{"id":"x"}]"#, r#" [ "EVENT" , "s1" , {"id":"x"} ] "#] {
            let Ok(RelaySays::Event { subscription, event }) = read(text) else { panic!("{text}") };
            assert_eq!((subscription.as_str(), &text[event]), ("s1", r#"{"id":"x"}"#));
        }
        let eose = |text, finish| {
            let subscription = "s".to_owned();
            assert_eq!(read(text), Ok(RelaySays::Eose { subscription, finish }), "{text}");
        };
        eose(r#"["EOSE","s"]"#, false);
        eose(r#"["EOSE","s",["more"]]"#, false);
        eose(r#"["EOSE", "s", ["finish"]]"#, true);
        let id = "ab".repeat(32);
        assert_eq!(
            read(&format!(r#"["OK","{id}",false,"blocked: no"]"#)),
            Ok(RelaySays::Ok { id: [0xab; 32], accepted: false, reason: "blocked: no".into() })
        );
        assert_eq!(
            read(r#"["NEG-ERR","c","blocked: too many",400000]"#),
            Ok(RelaySays::NegErr { comparison: "c".into(), reason: "blocked: too many".into() })
        );
        for other in [r#"["X",1]"#, r#"["TOO LONG","5000000","[\"EVENT\",\"h7\","]"#] {
            assert_eq!(read(other), Ok(RelaySays::Other), "{other}");
        }
        let too_long = |beginning| json!([*TOO_LONG, "5000000", beginning]).to_string();
        for (beginning, subscription) in
            [(r#"["EVENT", "h7", {"id"#, Some("h7".to_owned())), (r#"["NOTICE","x"#, None)]
        {
            let said = RelaySays::TooLong { subscription, bytes: 5_000_000 };
            assert_eq!(read(&too_long(beginning)), Ok(said));
        }
        assert_eq!(read("[]"), Ok(RelaySays::Other));
        for bad in ["", "{}", "[", r#"["OK","12",true,""]"#, r#"["EOSE"]"#, r#"["NEG-MSG","a",5]"#]
        {
            assert!(read(bad).is_err(), "{bad}");
        }
        let long = format!(r#"["NOTICE","{}"]"#, "é\\u0000".repeat(9_999));
        let Ok(RelaySays::Notice(notice)) = read(&long) else { panic!("{long}") };
        assert!(notice.len() < 310 && !notice.contains('\0'));
    }
}
