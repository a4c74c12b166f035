//! A client's message. The result does not depend on earlier messages in the same buffers, and
//! every refusal has a text.

use hark_codec::nostr::{ClientMessage, MessageBuffers};

/// Panics if a property does not hold.
pub fn check(bytes: &[u8]) {
    let mut fresh = MessageBuffers::new(4);
    let mut used = MessageBuffers::new(4);
    let before =
        br##"["REQ","used before",{"#t":["a","b\u0041"],"kinds":[1,2,3]},{"search":"x"}]"##;
    ClientMessage::parse(before, &mut used).expect("a message");
    let first = describe(bytes, &mut fresh);
    assert_eq!(first, describe(bytes, &mut used));
    assert_eq!(first, describe(bytes, &mut used));
}

fn describe(bytes: &[u8], inbox: &mut MessageBuffers) -> String {
    match ClientMessage::parse(bytes, inbox) {
        Ok(message) => {
            if let ClientMessage::Event(event) | ClientMessage::Auth(event) = message {
                let mut json = Vec::new();
                event.write_json(&mut json);
                super::event::as_record(&event, &json);
            }
            super::json(bytes);
            format!("{message:?}")
        }
        Err(error) => {
            let text = error.to_string();
            assert!(!text.is_empty(), "{:?}", error.about);
            format!("{:?} {text}", error.about)
        }
    }
}
