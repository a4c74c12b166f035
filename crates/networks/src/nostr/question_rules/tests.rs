//! Tests of the rules, with filters of clients and the gates of their readers.

use hark_archive::LabelSet;
use hark_codec::hex;
use hark_codec::nostr::Filter;

use super::super::limits::FilterLimits;
use super::super::query;
use super::ReaderStanding::{Guest, Member, Stranger};
use super::*;

const ME: [u8; 32] = [7; 32];
const OTHER: [u8; 32] = [9; 32];

/// The gate of a reader by the private kinds.
fn gate(standing: ReaderStanding) -> Arc<Gate> {
    let readers = if standing == Stranger { Vec::new() } else { vec![ME] };
    let values = readers.iter().map(|key| hex::encode_32(key)[..].into()).collect();
    Gate { kinds: vec![4], readers, addressed: LabelSet { name: b'p', values } }.into()
}

/// Asks as the relay does. `ME`, `OTHER` and `CODE` in a filter stand for keys.
fn ask(
    rules: &QuestionRules,
    standing: ReaderStanding,
    filters: &[&str],
) -> Result<Vec<Query>, NostrRefusal> {
    let key = |key| hex::text_32(key);
    let read = |text: &&str| {
        let mut filter = Filter::default();
        let text = text.replace("OTHER", &key(&OTHER)).replace("ME", &key(&ME));
        filter.parse(text.as_bytes()).unwrap();
        filter
    };
    let filters: Vec<Filter> = filters.iter().map(read).collect();
    let mut queries = query::within(&filters, &FilterLimits::default(), 5, None).unwrap();
    let gate = rules.restrict(standing, &gate(standing), &mut queries)?;
    query::close(&mut queries, &gate)?;
    Ok(queries)
}

/// The prefix of the refusal, or "" for an answer.
fn refused(rules: &QuestionRules, standing: ReaderStanding, filters: &[&str]) -> &'static str {
    ask(rules, standing, filters).map_or_else(|refusal| refusal.verdict.prefix(), |_| "")
}

fn members(kinds: &[u32], except_own: bool) -> QuestionRules {
    let members_only = MembersOnly::Kinds(kinds.to_vec());
    QuestionRules { members_only, except_own, ..QuestionRules::default() }
}

fn private(except_own: bool) -> QuestionRules {
    let members_only = MembersOnly::Everything;
    QuestionRules { members_only, except_own, ..QuestionRules::default() }
}

#[test]
fn without_rules_every_question_is_answered() {
    let open = QuestionRules::default();
    assert!(!open.is_set() && !open.needs_auth());
    for standing in [Stranger, Guest, Member] {
        assert_eq!(refused(&open, standing, &["{}"]), "");
    }
}

#[test]
fn a_private_relay_is_read_by_members_and_by_the_parties_if_these_are_excepted() {
    assert!(private(false).needs_auth() && private(true).is_set());
    let (own, named) = (r#"{"authors":["ME"]}"#, r##"{"#p":["ME"],"kinds":[1]}"##);
    for filter in ["{}", r#"{"ids":["ME"]}"#, own, named] {
        assert_eq!(refused(&private(false), Stranger, &[filter]), "auth-required", "{filter}");
        assert_eq!(refused(&private(true), Stranger, &[filter]), "auth-required", "{filter}");
        assert_eq!(refused(&private(false), Guest, &[filter]), "restricted", "{filter}");
        assert_eq!(refused(&private(false), Member, &[filter]), "", "{filter}");
    }
    for (filters, verdict) in [
        (&[own][..], ""),
        (&[named], ""),
        (&[own, named], ""),
        (&["{}"], "restricted"),
        (&[own, "{}"], "restricted"),
        (&[r#"{"authors":["ME","OTHER"]}"#], "restricted"),
        (&[r##"{"#p":["ME","OTHER"]}"##], "restricted"),
        (&[r##"{"#p":["OTHER"],"authors":["ME"]}"##], ""),
        (&[r##"{"#e":["ME"]}"##], "restricted"),
        (&[r#"{"ids":["ME"]}"#], "restricted"),
    ] {
        assert_eq!(refused(&private(true), Guest, filters), verdict, "{filters:?}");
    }
}

#[test]
fn kinds_of_members_are_refused_alone_and_left_out_among_others() {
    let (strict, lenient) = (members(&[30, 31], false), members(&[30, 31], true));
    let alone = r#"{"kinds":[31,30]}"#;
    assert_eq!(refused(&strict, Stranger, &[alone]), "auth-required");
    assert_eq!(refused(&lenient, Stranger, &[alone]), "auth-required");
    assert_eq!(refused(&strict, Stranger, &[r#"{"kinds":[4,30]}"#]), "auth-required");
    assert_eq!(refused(&strict, Guest, &[alone]), "restricted");
    assert_eq!(refused(&strict, Guest, &[r#"{"kinds":[4,30]}"#]), "");
    assert_eq!(refused(&lenient, Guest, &[alone]), "");
    assert_eq!(refused(&strict, Member, &[alone]), "");
    assert_eq!(refused(&strict, Stranger, &[alone, "{}"]), "");
    let asked = |rules, standing| ask(rules, standing, &[r#"{"kinds":[1,30]}"#, "{}"]).unwrap();
    for (rules, standing) in [(&strict, Stranger), (&strict, Guest), (&lenient, Stranger)] {
        let queries = asked(rules, standing);
        assert_eq!(queries[0].kinds, Some(vec![1]), "{standing:?}");
        for query in &queries {
            assert!(!may_deliver(query, 30, false) && may_deliver(query, 1, false));
        }
    }
    // The gate shows a guest its own events.
    for query in asked(&lenient, Guest) {
        assert_eq!(query.gate.as_ref().unwrap().kinds, [4, 30, 31]);
        assert!(!may_deliver(&query, 30, true) && may_deliver(&query, 30, false));
    }
    let of_member = asked(&strict, Member);
    assert_eq!(of_member[0].gate.as_ref().unwrap().kinds, [4]);
    assert_eq!(of_member[0].kinds, Some(vec![1, 30]));
}

#[test]
fn questions_are_narrowed_to_the_answered_kinds() {
    let rules = QuestionRules { kinds: Some(vec![0, 3]), ..QuestionRules::default() };
    for standing in [Stranger, Guest, Member] {
        assert_eq!(refused(&rules, standing, &[r#"{"kinds":[1,7]}"#]), "blocked");
        let all = ask(&rules, standing, &["{}", r#"{"kinds":[1,3]}"#, r#"{"kinds":[1]}"#]);
        let kinds: Vec<_> = all.unwrap().into_iter().map(|query| query.kinds.unwrap()).collect();
        assert_eq!(kinds, [vec![0, 3], vec![3], vec![]]);
    }
}

#[test]
fn a_filter_has_to_name_something_where_questions_are_narrow() {
    let rules = QuestionRules { narrow: true, ..QuestionRules::default() };
    for (filters, verdict) in [
        (&["{}"][..], "blocked"),
        (&[r#"{"kinds":[1],"since":5,"limit":0}"#], "blocked"),
        (&[r#"{"authors":["ME"]}"#, "{}"], "blocked"),
        (&[r#"{"authors":["ME"]}"#], ""),
        (&[r#"{"ids":["ME"]}"#], ""),
        (&[r##"{"#t":["x"]}"##], ""),
    ] {
        assert_eq!(refused(&rules, Member, filters), verdict, "{filters:?}");
    }
}

/// Every question that was answered under some rules, checked under every other.
#[test]
fn an_open_question_is_closed_exactly_if_the_new_rules_would_give_it_less() {
    let some = [
        QuestionRules::default(),
        members(&[30], false),
        members(&[30], true),
        members(&[4, 30], false),
        private(false),
        private(true),
        QuestionRules { kinds: Some(vec![1, 30]), ..QuestionRules::default() },
        QuestionRules { narrow: true, ..members(&[1], true) },
    ];
    let filters = [
        "{}",
        r#"{"kinds":[1]}"#,
        r#"{"kinds":[30]}"#,
        r#"{"kinds":[1,30]}"#,
        r#"{"authors":["ME"]}"#,
        r##"{"#p":["ME"],"kinds":[4,30]}"##,
        r##"{"#t":["x"]}"##,
    ];
    let mut closed = 0;
    for (before, filter) in some.iter().flat_map(|rules| filters.iter().map(move |it| (rules, it)))
    {
        for was in [Stranger, Guest, Member] {
            let Ok(queries) = ask(before, was, &[filter]) else { continue };
            // The rules under which a question was answered keep it open.
            let same = before.refusal_of_open(was, &gate(was), &queries);
            assert_eq!(same, None, "{before:?} {was:?} {filter}");
            for (after, is) in
                some.iter().flat_map(|rules| [Stranger, Guest, Member].map(|is| (rules, is)))
            {
                let refusal = after.refusal_of_open(is, &gate(is), &queries);
                closed += usize::from(refusal.is_some());
                let asked_again = ask(after, is, &[filter]);
                if refusal.is_none() && is == was && asked_again.is_err() {
                    // Open, and refused when asked again: then it finds nothing that is closed.
                    let finds = |kind| queries.iter().any(|query| may_deliver(query, kind, false));
                    let narrow = after.narrow || after.needs_auth();
                    assert!(!narrow && !finds(30), "{before:?} {after:?} {is:?} {filter}");
                }
            }
        }
    }
    assert!(closed > 300, "{closed}");
}
