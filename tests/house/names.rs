//! Names of functions consist of words that are usual for databases and networks. A name with
//! another word makes the reader search the body for its meaning.

use std::collections::BTreeSet;

use super::tokens::{shipped, shipped_sources, tokens};

/// Words that no name of a function contains. Databases and networks have a usual verb or noun for
/// each meaning: wait until durable, pop, read, log, pause, poll, cache, charge, import, report,
/// release, repair.
const DENIED: [&str; 50] = [
    "anybody", "asked", "asks", "believe", "bring", "brings", "brought", "calm", "come", "comes",
    "crowd", "dear", "doom", "doubt", "farewell", "give", "given", "gives", "glance", "goes",
    "gone", "hand", "hang", "keep", "keeps", "kept", "let", "lets", "linger", "look", "looked",
    "looking", "looks", "mend", "mends", "nobody", "rest", "resting", "said", "say", "says",
    "settle", "settled", "somebody", "take", "taken", "talk", "tell", "tells", "told",
];

/// Words in a row that no name of a function contains.
const DENIED_PHRASES: [&str; 4] = ["go_on", "go_over", "put_off", "turn_away"];

/// Names with denied words that stay, with the reason.
const ALLOWED: [(&str, &str); 5] = [
    ("connection_keep_alive", "the name is libp2p's"),
    ("keep_alive", "the field's name for messages on an idle connection"),
    ("look_up", "the field's verb for finding a value by its key"),
    ("take", "removes and returns, as in the standard library"),
    ("take_over", "a process takes over the sockets and the lock of another process"),
];

/// The names of the functions that shipped code defines.
fn function_names() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for source in shipped_sources() {
        let tokens = tokens(&source.text);
        for pair in shipped(&tokens).windows(2).filter(|pair| pair[0] == "fn") {
            found.insert(pair[1].to_owned());
        }
    }
    found
}

fn is_denied(name: &str) -> bool {
    let padded = format!("_{name}_");
    let mut words = DENIED.iter().chain(&DENIED_PHRASES);
    words.any(|word| padded.contains(&format!("_{word}_")))
}

#[test]
fn functions_have_the_fields_verbs() {
    let mut names = function_names();
    assert!(names.len() > 1_000, "only {} names were found", names.len());
    names.retain(|name| is_denied(name));
    let listed: BTreeSet<String> = ALLOWED.iter().map(|(name, _)| (*name).to_owned()).collect();
    let unknown: Vec<_> = names.difference(&listed).collect();
    let gone: Vec<_> = listed.difference(&names).collect();
    assert!(
        unknown.is_empty() && gone.is_empty(),
        "name what each function does: {unknown:#?}; no longer in the tables: {gone:#?}"
    );
}

#[test]
fn denied_words_are_found_in_names() {
    for (name, denied) in [
        ("settle", true),
        ("is_kept", true),
        ("poll_put_off", true),
        ("restore", false),
        ("handshake", false),
        ("put_offset", false),
    ] {
        assert_eq!(is_denied(name), denied, "{name}");
    }
}
