//! The size of files, the places of modules, and expressions that indicate a missing type or trait.
//!
//! Each table lists the files that break a rule. A file that no longer breaks the rule has to leave
//! the table.

use std::collections::BTreeSet;

use super::tokens::{shipped, shipped_sources, tokens};
use super::{root, sources};

/// Maximum number of lines of a source file, with its tests. Files of tests have the same maximum.
const LINES_MAX: usize = 500;

/// Files with more than [`LINES_MAX`] lines.
const LONG_FILES: [&str; 0] = [];
/// Maximum number of files in [`LONG_FILES`].
const LONG_FILES_MAX: usize = 8;

/// Modules `x.rs` with children in `x/`. All other modules with children are `x/mod.rs`.
const BESIDE_THEIR_FOLDER: [&str; 0] = [];

/// Files of PostgreSQL's store that ask whether the tables are distributed. Instead, each layout
/// has its own statements and steps.
const ASK_FOR_THE_LAYOUT: [&str; 0] = [];

/// Files in which an empty text stands for a missing text. A separate type makes such texts
/// unnecessary.
const EMPTY_TEXTS: [&str; 0] = [];

/// Files of the server and the networks that return errors as texts. A caller cannot distinguish
/// such errors, so each error must have a type.
const TEXTS_AS_ERRORS: [&str; 0] = [];

/// Words of protocols, which the archive does not know.
const PROTOCOL_WORDS: [&str; 8] =
    ["CLOSED", "NEG-", "NIP-", "AUTH", "WebSocket", "Nostr", "Waku", "Whisper"];

/// Files of the archive that have words of protocols.
const PROTOCOL_FILES: [&str; 0] = [];

/// The source files of all crates.
fn crate_sources() -> impl Iterator<Item = (String, String)> {
    let is_source = |file: &str| {
        file.starts_with("src/") || file.starts_with("crates/") && file.contains("/src/")
    };
    sources().filter(move |(file, _)| is_source(file))
}

/// Compares the files that break a rule with the table of these files.
fn compare(found: impl Iterator<Item = String>, listed: &[&str], rule: &str) {
    let found: BTreeSet<String> = found.collect();
    let listed: BTreeSet<String> = listed.iter().map(|file| (*file).to_owned()).collect();
    let unknown: Vec<_> = found.difference(&listed).collect();
    let gone: Vec<_> = listed.difference(&found).collect();
    assert!(
        unknown.is_empty() && gone.is_empty(),
        "{rule}: {unknown:#?}; no longer in the table: {gone:#?}"
    );
}

/// The files of `folders` whose shipped code satisfies `breaks`.
fn with_code(folders: &[&str], breaks: impl Fn(&[&str]) -> bool) -> impl Iterator<Item = String> {
    let is_in = |file: &str| folders.iter().any(|folder| file.starts_with(folder));
    let found = shipped_sources()
        .into_iter()
        .filter(move |source| is_in(&source.file) && breaks(&shipped(&tokens(&source.text))));
    found.map(|source| source.file)
}

/// Whether the tokens begin with a `Result` whose error type is `String`.
fn is_text_result(tokens: &[&str]) -> bool {
    let ["Result", "<", rest @ ..] = tokens else { return false };
    let mut depth = 1_usize;
    for (at, token) in rest.iter().enumerate() {
        match *token {
            "<" | "(" | "[" => depth += 1,
            // The arrow of a function's type.
            ">" if at > 0 && rest[at - 1] == "-" => {}
            ">" | ")" | "]" => depth -= 1,
            "," if depth == 1 => return matches!(rest[at + 1..], ["String", ">", ..]),
            _ => {}
        }
        if depth == 0 {
            return false;
        }
    }
    false
}

#[test]
fn files_fit_a_room() {
    let long = sources().filter(|(_, text)| text.lines().count() > LINES_MAX);
    compare(long.map(|(file, _)| file), &LONG_FILES, "divide files of more than 500 lines");
    assert!(LONG_FILES.len() <= LONG_FILES_MAX, "{} long files", LONG_FILES.len());
}

#[test]
fn modules_with_children_are_in_their_folder() {
    let beside = crate_sources()
        .filter_map(|(file, _)| root().join(file.strip_suffix(".rs")?).is_dir().then_some(file));
    compare(beside, &BESIDE_THEIR_FOLDER, "name the file x/mod.rs");
}

#[test]
fn a_layout_is_asked_for_in_the_layouts_alone() {
    let asks = |tokens: &[&str]| tokens.contains(&"is_distributed");
    let files = with_code(&["src/", "crates/"], asks);
    let outside = files.filter(|file| !file.starts_with("crates/store-postgres/src/layout"));
    compare(outside, &ASK_FOR_THE_LAYOUT, "let the layout bring what differs");
}

#[test]
fn no_value_stands_for_a_text_that_is_missing() {
    let empty = ["_", "=", ">", "String", "::", "new", "(", ")"];
    let has_empty = |tokens: &[&str]| tokens.windows(empty.len()).any(|window| window == empty);
    let files = with_code(&["src/", "crates/"], has_empty);
    compare(files, &EMPTY_TEXTS, "make an enum of those that have a text");
}

#[test]
fn errors_of_the_server_and_the_networks_are_types() {
    let has_text = |tokens: &[&str]| (0..tokens.len()).any(|at| is_text_result(&tokens[at..]));
    let files = with_code(&["crates/server/src/", "crates/networks/src/"], has_text);
    compare(files, &TEXTS_AS_ERRORS, "make the error a type");
}

#[test]
fn the_archive_has_no_words_of_protocols() {
    let has_word = |text: &str| {
        let shipped = text.split("#[cfg(test)]").next().unwrap_or_default();
        PROTOCOL_WORDS.iter().any(|word| shipped.contains(word))
    };
    let files = crate_sources()
        .filter(|(file, text)| file.starts_with("crates/archive/src/") && has_word(text));
    compare(files.map(|(file, _)| file), &PROTOCOL_FILES, "say it without the protocol's words");
}

#[test]
fn results_with_a_text_as_error_are_found() {
    for (text, is_text) in [
        ("Result<(), String>", true),
        ("Result<Vec<(u8, String)>, String>", true),
        ("Result<impl Fn(u8) -> Vec<u8>, String>", true),
        ("Result<Vec<String>, io::Error>", false),
        ("Result<String>", false),
        ("HashMap<u8, String>", false),
    ] {
        assert_eq!(is_text_result(&tokens(text)), is_text, "{text}");
    }
}
