//! Who a client has shown to be (NIP-42). Nobody yet: this relay asks for nothing, and says so.

use hark_codec::nostr::{Event, reply};

use crate::line::Line;

/// Answers an AUTH.
pub(super) fn answer(event: &Event<'_>, line: &Line) {
    line.say(|out| {
        reply::write_ok(out, event.id(), false, "unsupported: this relay does not ask for AUTH");
    });
}
