//! Tests of the bans and allows of one process.

use hark_archive::clock::Clock;
use hark_codec::crypto::KeyPair;
use hark_codec::nostr::{Event, EventArena, EventDraft};

use super::*;
use crate::nostr::policy::{EventPolicy, WordList};

const NOW_S: u64 = 1_700_000_000;

fn set(text: &str, ruling: Ruling, until_s: Option<u64>) -> RulingChange {
    RulingChange::Set { subject: text.parse().unwrap(), ruling, reason: "why".into(), until_s }
}

fn lift(text: &str, ruling: Ruling) -> RulingChange {
    RulingChange::Lift(text.parse().unwrap(), ruling)
}

/// An event of the only author.
fn event(kind: u16, content: &str) -> Vec<u8> {
    let keys = KeyPair::from_secret([7; 32]).unwrap();
    let mut json = Vec::new();
    EventDraft { created_at: NOW_S, kind, tags: &[], content }.sign(&keys, &mut json);
    json
}

fn refusal(moderation: &Moderation, policy: &EventPolicy, json: &[u8]) -> Option<String> {
    let mut arena = EventArena::new();
    let event = Event::parse(json, &mut arena).unwrap();
    moderation.event_refusal(policy, &event).map(|refusal| refusal.to_string())
}

#[test]
fn every_sort_of_ban_refuses_with_its_reason_until_it_ends_or_is_lifted() {
    let clock = Clock::fake(NOW_S);
    let moderation = Moderation::in_memory(clock.clone());
    let json = event(1, "Welcome to the Casino!");
    let id = String::from_utf8(json[7..71].to_vec()).unwrap();
    let key = hex_key();
    let policy = EventPolicy::default();
    for (subject, words) in [
        (format!("id:{id}"), "this relay does not take this event"),
        (format!("key:{key}"), "this relay does not take events of this key"),
        ("kind:1".into(), "this relay does not take events of kind 1"),
        ("word:casino".into(), "the event has a word that this relay does not take"),
    ] {
        assert_eq!(refusal(&moderation, &policy, &json), None);
        let banned = moderation.change_now(&[set(&subject, Ruling::Ban, None)], "me").unwrap();
        assert!(banned[0].is_change() && banned[0].before.is_none(), "{banned:?}");
        let refused = format!("blocked: {words}: why");
        assert_eq!(refusal(&moderation, &policy, &json), Some(refused.clone()), "{subject}");
        assert_eq!(
            refusal(&moderation, &policy, &event(2, "bread")).is_some(),
            subject.starts_with("key")
        );
        let again = moderation.change_now(&[set(&subject, Ruling::Ban, None)], "you").unwrap();
        assert!(!again[0].is_change(), "{again:?}");
        let until = moderation.change_now(&[set(&subject, Ruling::Ban, Some(NOW_S + 5))], "me");
        assert!(until.unwrap()[0].is_change());
        clock.set(NOW_S + 4);
        assert_eq!(refusal(&moderation, &policy, &json), Some(refused));
        clock.set(NOW_S + 5);
        assert_eq!(refusal(&moderation, &policy, &json), None, "{subject} has ended");
        let page = moderation.entries(EntryFilter::default(), None, 10).unwrap();
        assert_eq!(page, EntryPage::default());
        clock.set(NOW_S);
        let lifted = moderation.change_now(&[lift(&subject, Ruling::Ban)], "me").unwrap();
        assert!(lifted[0].after.is_none());
    }
    let log = moderation.log(0, None, 500).unwrap();
    let acts: Vec<_> = log.notes.iter().rev().map(|note| note.act.as_str()).collect();
    assert_eq!(acts, ["ban", "ban", "unban"].repeat(4));
    assert_eq!(log.notes[0].before["reason"], "why");
}

fn hex_key() -> String {
    let keys = KeyPair::from_secret([7; 32]).unwrap();
    let digits = hark_codec::hex::encode_32(keys.public());
    String::from_utf8(digits.to_vec()).unwrap()
}

#[test]
fn an_allow_extends_the_lists_in_files_and_closes_nothing() {
    let moderation = Moderation::in_memory(Clock::fake(NOW_S));
    let json = event(1, "bread");
    let id = String::from_utf8(json[7..71].to_vec()).unwrap();
    let key = hex_key();
    let only = |text: &str| Some(WordList::new(&[text]).unwrap());
    let open = EventPolicy::default();
    let closed = EventPolicy {
        allow_keys: Some([[9; 32]].into()),
        allow_kinds: Some(vec![7..=7]),
        allow_words: only("cake"),
        ..EventPolicy::default()
    };
    let change = |change: RulingChange| drop(moderation.change_now(&[change], "me").unwrap());
    let passes = |policy: &EventPolicy, json: &[u8]| refusal(&moderation, policy, json).is_none();
    let denied = EventPolicy {
        deny_keys: [*KeyPair::from_secret([7; 32]).unwrap().public()].into(),
        ..open.clone()
    };
    for (subject, still_refused) in
        [(format!("key:{key}"), true), ("kind:1".into(), true), ("word:bread".into(), false)]
    {
        assert!(!passes(&closed, &json));
        change(set(&subject, Ruling::Allow, None));
        assert!(passes(&open, &event(3, "cake")), "{subject} must not close an open relay");
        assert_eq!(!passes(&closed, &json), still_refused, "{subject}");
        assert!(!passes(&denied, &json), "a deny list in a file stays in force");
    }
    change(set("kind:1", Ruling::Ban, None));
    assert!(!passes(&open, &json), "a ban wins");
    change(set(&format!("key:{key}"), Ruling::Ban, None));
    change(set(&format!("id:{id}"), Ruling::Ban, None));
    assert!(!passes(&open, &json));
    change(set(&format!("id:{id}"), Ruling::Allow, None));
    assert!(passes(&open, &json) && passes(&denied, &json), "an allowed id passes all lists");
}

#[test]
fn lists_and_logs_come_in_pages() {
    let moderation = Moderation::in_memory(Clock::fake(NOW_S));
    let all: Vec<_> = (0..1_200_u16)
        .flat_map(|kind| {
            [
                set(&format!("kind:{kind}"), Ruling::Ban, None),
                set(&format!("word:w{kind}"), Ruling::Allow, None),
            ]
        })
        .collect();
    assert_eq!(moderation.change_now(&all, "me").unwrap().len(), 2_400);
    let filter = EntryFilter { ruling: Some(Ruling::Ban), sort: None };
    let (mut kinds, mut after) = (Vec::new(), None);
    loop {
        let page = moderation.entries(filter, after.as_deref(), 500).unwrap();
        kinds.extend(page.entries.into_iter().map(|entry| entry.subject));
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(kinds, (0..1_200).map(RulingSubject::Kind).collect::<Vec<_>>());
    let (mut notes, mut after) = (0, None);
    loop {
        let page = moderation.log(0, after.as_deref(), 333).unwrap();
        notes += page.notes.len();
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(notes, 2_400);
    assert!(moderation.log(NOW_S + 60, None, 9).unwrap().notes.is_empty());
    assert!(moderation.entries(filter, Some("somewhere"), 9).is_err());
    assert_eq!(moderation.count(Ruling::Allow, SubjectSort::Word), 1_200);
    let act =
        AuditAct { act: "changerelayname".into(), after: "bread".into(), ..AuditAct::default() };
    moderation.note_now(act, "npub1").unwrap();
    assert_eq!(moderation.log(0, None, 1).unwrap().notes[0].act, "changerelayname");
    assert!(matches!(Moderation::default().change_now(&all, "me"), Err(ModerationError::Absent)));
}
