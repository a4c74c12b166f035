//! Verdicts on right, wrong, short and unordered answers.

use hark_codec::crypto::KeyPair;
use hark_codec::nostr::{EventArena, EventDraft};

use super::*;
use crate::people;

/// A file of events, and the time and id of each event.
struct WrittenFile {
    path: std::path::PathBuf,
    ids: Vec<AnsweredEvent>,
}

impl Drop for WrittenFile {
    fn drop(&mut self) {
        std::fs::remove_file(&self.path).unwrap();
    }
}

fn file(name: &str, events: &[(&KeyPair, u64, u16, &[&[&str]])]) -> WrittenFile {
    let path = std::env::temp_dir().join(format!("hark-{name}-{}", std::process::id()));
    let (mut text, mut ids) = (Vec::new(), Vec::new());
    for (at, (keys, created_at, kind, tags)) in events.iter().enumerate() {
        let content = at.to_string();
        let draft = EventDraft { created_at: *created_at, kind: *kind, tags, content: &content };
        let from = text.len();
        draft.sign(keys, &mut text);
        let mut arena = EventArena::new();
        let id = *Event::parse(&text[from..], &mut arena).unwrap().id();
        ids.push((*created_at, id));
        text.push(b'\n');
    }
    std::fs::write(&path, text).unwrap();
    WrittenFile { path, ids }
}

#[test]
fn an_answer_is_right_wrong_short_or_unordered() {
    let keys = people::keys(0).unwrap();
    let tags: &[&[&str]] = &[&["t", "a"]];
    let file = file(
        "verdicts",
        &[
            (&keys, 10, 1, tags),
            (&keys, 20, 1, tags),
            (&keys, 20, 1, tags),
            (&keys, 30, 1, tags),
            (&keys, 40, 7, &[]),
        ],
    );
    let (all, two, latest) =
        (r##"{"#t":["a"]}"##, r##"{"#t":["a"],"kinds":[1],"limit":2}"##, r#"{"limit":1}"#);
    let expected = ExpectedAnswers::read(&file.path, [all, two, latest].into_iter()).unwrap();
    let [ten, mut low, mut high, thirty, reaction] = file.ids[..] else { panic!("five events") };
    if low > high {
        std::mem::swap(&mut low, &mut high);
    }
    for (question, answer, verdict) in [
        (all, &[thirty, low, high, ten][..], AnswerVerdict::Right),
        (all, &[thirty, high, low, ten], AnswerVerdict::OtherTies),
        (all, &[ten, thirty, low, high], AnswerVerdict::Unordered),
        (all, &[thirty, low, ten], AnswerVerdict::Short),
        (all, &[], AnswerVerdict::Short),
        (all, &[reaction, thirty, low, high, ten], AnswerVerdict::Wrong),
        (all, &[thirty, thirty, low, high, ten], AnswerVerdict::Wrong),
        (two, &[thirty, low], AnswerVerdict::Right),
        (two, &[thirty, high], AnswerVerdict::OtherTies),
        (two, &[thirty], AnswerVerdict::Short),
        (two, &[low, high], AnswerVerdict::Short),
        (two, &[thirty, low, high], AnswerVerdict::Wrong),
        (two, &[thirty, ten], AnswerVerdict::Wrong),
        (latest, &[reaction], AnswerVerdict::Right),
        (latest, &[thirty], AnswerVerdict::Wrong),
    ] {
        assert_eq!(expected.check(question, answer), Some(verdict), "{question}: {answer:?}");
    }
    assert_eq!(expected.check("{}", &[]), None);
}

#[test]
fn an_older_version_may_remain_when_the_newest_was_deleted_by_its_id() {
    let keys = people::keys(0).unwrap();
    let draft = file("deleted-version", &[(&keys, 40, 0, &[])]);
    let newest = crate::text::hex(&draft.ids[0].1);
    let file = file(
        "older-version",
        &[
            (&keys, 40, 0, &[]),
            (&keys, 30, 0, &[]),
            (&keys, 20, 0, &[]),
            (&keys, 25, 1, &[]),
            (&keys, 15, 1, &[]),
            (&keys, 50, 5, &[&["e", &newest]]),
            (&keys, 35, 3, &[&["expiration", "60"]]),
            (&keys, 10, 3, &[]),
        ],
    );
    let (all, two, versions) = (r#"{"limit":20}"#, r#"{"limit":2}"#, r#"{"kinds":[0],"limit":2}"#);
    let expected = ExpectedAnswers::read(&file.path, [all, two, versions].into_iter()).unwrap();
    let [forty, thirty, twenty, note, old_note, deletion, expired, list] = file.ids[..] else {
        panic!("eight events")
    };
    for (question, answer, verdict) in [
        (all, &[deletion, note, old_note][..], AnswerVerdict::Right),
        (all, &[deletion, thirty, note, old_note], AnswerVerdict::Right),
        (all, &[deletion, note, twenty, old_note], AnswerVerdict::Right),
        (all, &[deletion, note, old_note, list], AnswerVerdict::Right),
        (all, &[deletion, thirty, old_note], AnswerVerdict::Short),
        (all, &[deletion, forty, note, old_note], AnswerVerdict::Wrong),
        (all, &[deletion, expired, note, old_note], AnswerVerdict::Wrong),
        (all, &[deletion, note, thirty, old_note], AnswerVerdict::Unordered),
        (two, &[deletion, note], AnswerVerdict::Right),
        (two, &[deletion, thirty], AnswerVerdict::Right),
        (two, &[deletion], AnswerVerdict::Short),
        (two, &[deletion, old_note], AnswerVerdict::Wrong),
        (two, &[deletion, thirty, note], AnswerVerdict::Wrong),
        (versions, &[], AnswerVerdict::Right),
        (versions, &[thirty], AnswerVerdict::Right),
        (versions, &[twenty], AnswerVerdict::Right),
        (versions, &[forty], AnswerVerdict::Wrong),
    ] {
        assert_eq!(expected.check(question, answer), Some(verdict), "{question}: {answer:?}");
    }
}

#[test]
fn replaced_deleted_expired_and_hidden_events_are_known() {
    let (one, other) = (people::keys(0).unwrap(), people::keys(1).unwrap());
    let draft = file("deleted-id", &[(&one, 10, 1, &[])]);
    let deleted = crate::text::hex(&draft.ids[0].1);
    let address = format!("30023:{}:x", crate::text::hex(one.public()));
    let file = file(
        "stored",
        &[
            (&one, 10, 1, &[]),
            (&one, 20, 0, &[]),
            (&one, 30, 0, &[]),
            (&one, 40, 30_023, &[&["d", "x"]]),
            (&one, 50, 30_023, &[&["d", "y"]]),
            (&one, 60, 5, &[&["e", &deleted], &["a", &address]]),
            (&other, 60, 5, &[&["e", &deleted]]),
            (&one, 70, 1, &[&["expiration", "100"]]),
            (&one, 80, 20_001, &[]),
            (&one, 90, 4, &[]),
            (&one, 95, WRAP, &[]),
        ],
    );
    let (latest, inbox) = (r#"{"limit":9}"#, r#"{"kinds":[1059]}"#);
    let expected = ExpectedAnswers::read(&file.path, [latest, inbox].into_iter()).unwrap();
    let mut public: Vec<AnsweredEvent> = [6, 5, 4, 2].map(|at| file.ids[at]).into();
    public[..2].sort_unstable();
    let with = |private: &[usize]| {
        let private = private.iter().map(|at| file.ids[*at]);
        private.chain(public.iter().copied()).collect::<Vec<_>>()
    };
    for (private, verdict) in [
        (&[][..], AnswerVerdict::Right),
        (&[9], AnswerVerdict::Right),
        (&[10, 9], AnswerVerdict::Right),
        (&[10], AnswerVerdict::Short),
        (&[8], AnswerVerdict::Wrong),
        (&[7], AnswerVerdict::Wrong),
    ] {
        assert_eq!(expected.check(latest, &with(private)), Some(verdict), "{private:?}");
    }
    assert_eq!(expected.check(inbox, &[file.ids[10]]), Some(AnswerVerdict::Right));
    assert_eq!(expected.check(inbox, &[]), Some(AnswerVerdict::Short));
}
