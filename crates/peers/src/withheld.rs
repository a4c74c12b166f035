//! The events that do not leave this archive: private kinds and protected events.

use hark_codec::nostr::{Event, EventArena};

/// The events that do not leave this archive.
#[derive(Clone, Debug, Default)]
pub(crate) struct Withheld {
    /// The withheld kinds, sorted.
    pub(crate) kinds: Vec<u32>,
    /// Whether protected events are withheld. Only their authors may publish these events (NIP-70).
    pub(crate) protected: bool,
}

impl Withheld {
    /// Withholds these kinds and, unless `send_protected` is set, protected events.
    pub(crate) fn new(kinds: &[u32], send_protected: bool) -> Self {
        let mut kinds = kinds.to_vec();
        kinds.sort_unstable();
        Self { kinds, protected: !send_protected }
    }

    /// Whether an event is withheld.
    pub(crate) fn has(&self, kind: u32, json: &str) -> bool {
        if self.kinds.binary_search(&kind).is_ok() {
            return true;
        }
        // Most events do not contain this text, so they need no parsing.
        self.protected
            && json.contains("\"-\"")
            && Event::parse(json.as_bytes(), &mut EventArena::new())
                .is_ok_and(|event| event.is_protected())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_private_stays_here() {
        let withheld = Withheld { kinds: vec![4, 1059], protected: true };
        let event = |tags: &str| {
            let (id, sig) = ("0".repeat(64), "0".repeat(128));
            format!(
                r#"{{"id":"{id}","pubkey":"{id}","created_at":1,"kind":1,"tags":{tags},"content":"\"-\"","sig":"{sig}"}}"#
            )
        };
        assert!(withheld.has(4, "{}") && withheld.has(1059, "{}"));
        assert!(withheld.has(1, &event(r#"[["-"]]"#)));
        assert!(!withheld.has(1, &event(r#"[["t","-"]]"#)));
        assert!(!Withheld::default().has(4, &event(r#"[["-"]]"#)));
    }
}
