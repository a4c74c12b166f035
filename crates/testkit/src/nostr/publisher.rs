//! A client that publishes many events on one connection.

use std::sync::mpsc;

use hark_archive::Id;
use hark_codec::hex;

use crate::websocket::Socket;

/// Publishes messages until `next` returns `None` or the connection ends. At most `window` messages
/// are unacknowledged at a time. For each OK, `answered` gets the id and the remaining text of the
/// message.
pub fn publish(
    mut socket: Socket,
    window: usize,
    mut next: impl FnMut() -> Option<Vec<u8>>,
    mut answered: impl FnMut(Id, &[u8]) + Send,
) {
    let mut writer = socket.writer();
    let (sent, unanswered) = mpsc::sync_channel::<()>(window);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            // The channel has one entry for each message without an answer.
            while unanswered.recv().is_ok() {
                let Some(text) = socket.receive() else { return };
                let reply = text.strip_prefix(b"[\"OK\",\"").unwrap_or_else(|| {
                    panic!("received {}", String::from_utf8_lossy(&text));
                });
                let (id, rest) = reply.split_at(64);
                answered(hex::decode_32(id).expect("an id"), rest);
            }
        });
        while let Some(message) = next() {
            if writer.send_text(&message).is_err() || sent.send(()).is_err() {
                return;
            }
        }
        drop(sent);
    });
}
