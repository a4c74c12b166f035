//! The size of files, the places of modules, and expressions that stand for a missing design.
//!
//! Each table lists the files that break a rule. A file that no longer breaks the rule has to leave
//! the table.

use std::collections::BTreeSet;

use super::tokens::{shipped, shipped_sources, tokens};
use super::{root, sources};

/// Maximum number of lines of a file in the sources of the crates, with its tests.
const LINES_MAX: usize = 500;

/// Files with more than [`LINES_MAX`] lines.
const LONG_FILES: [&str; 33] = [
    "crates/archive/src/live/tests.rs",
    "crates/archive/src/mirror.rs",
    "crates/archive/src/query/cursor.rs",
    "crates/archive/src/retention.rs",
    "crates/archive/src/store.rs",
    "crates/archive/src/writer.rs",
    "crates/bench/src/args.rs",
    "crates/bench/src/query.rs",
    "crates/codec/src/waku/sync.rs",
    "crates/server/src/nostr/door.rs",
    "crates/server/src/nostr/intake.rs",
    "crates/server/src/nostr/outbox.rs",
    "crates/server/src/rate.rs",
    "crates/server/src/waku/history.rs",
    "crates/server/src/waku/p2p/mod.rs",
    "crates/server/src/waku/p2p/sync.rs",
    "crates/store-embedded/src/check.rs",
    "crates/store-embedded/src/log.rs",
    "crates/store-embedded/src/open.rs",
    "crates/store-embedded/src/segment/view.rs",
    "crates/store-embedded/src/shelf.rs",
    "crates/store-postgres/src/layout/plain.rs",
    "crates/store-postgres/src/lib.rs",
    "crates/store-postgres/src/search/mod.rs",
    "crates/store-postgres/src/search/walk.rs",
    "crates/store-postgres/src/search/windows.rs",
    "crates/store-postgres/src/session.rs",
    "crates/testkit/src/disk.rs",
    "crates/testkit/src/postgres.rs",
    "src/commands/import/json.rs",
    "src/config/mod.rs",
    "src/config/settings.rs",
    "src/location.rs",
];
/// Maximum number of files in [`LONG_FILES`].
const LONG_FILES_MAX: usize = 33;

/// Modules `x.rs` with children in `x/`, which are `x/mod.rs` elsewhere.
const BESIDE_THEIR_FOLDER: [&str; 14] = [
    "crates/archive/src/retention.rs",
    "crates/archive/src/store.rs",
    "crates/bench/src/report.rs",
    "crates/server/src/admin/exchange.rs",
    "crates/server/src/admin/exchange/explored.rs",
    "crates/server/src/admin/exchange/explored/world.rs",
    "crates/server/src/rest.rs",
    "crates/server/src/waku/history.rs",
    "crates/server/src/waku/p2p/tests.rs",
    "crates/server/src/whisper/history.rs",
    "crates/server/src/whisper/peers/mail.rs",
    "crates/server/src/whisper/rlpx/handshake.rs",
    "crates/store-embedded/src/maintenance.rs",
    "src/commands/bench.rs",
];

/// Files of PostgreSQL's store that ask whether the tables are distributed. A layout brings its own
/// statements and steps instead.
const ASK_FOR_THE_LAYOUT: [&str; 10] = [
    "crates/store-postgres/src/commit/fetch.rs",
    "crates/store-postgres/src/commit/mod.rs",
    "crates/store-postgres/src/commit/placed.rs",
    "crates/store-postgres/src/lib.rs",
    "crates/store-postgres/src/listen.rs",
    "crates/store-postgres/src/migrate.rs",
    "crates/store-postgres/src/others.rs",
    "crates/store-postgres/src/search/mod.rs",
    "crates/store-postgres/src/search/words.rs",
    "crates/store-postgres/src/state.rs",
];

/// Files in which a value without a text has the empty text. A type of its own leaves no such value.
const EMPTY_TEXTS: [&str; 1] = ["crates/store-postgres/src/layout/citus.rs"];

/// Files of the server and the networks that return errors as texts. A caller cannot tell such
/// errors apart, so an error is a type.
const TEXTS_AS_ERRORS: [&str; 30] = [
    "crates/networks/src/lib.rs",
    "crates/networks/src/nostr/filters.rs",
    "crates/networks/src/nostr/query.rs",
    "crates/networks/src/waku/filters.rs",
    "crates/networks/src/waku/retention.rs",
    "crates/networks/src/whisper/filters.rs",
    "crates/server/src/admin/control.rs",
    "crates/server/src/admin/give.rs",
    "crates/server/src/admin/handover.rs",
    "crates/server/src/admin/hold.rs",
    "crates/server/src/admin/reload.rs",
    "crates/server/src/admin/served.rs",
    "crates/server/src/admin/successor.rs",
    "crates/server/src/nostr/auth.rs",
    "crates/server/src/nostr/comparison/mod.rs",
    "crates/server/src/nostr/comparison/set.rs",
    "crates/server/src/nostr/count.rs",
    "crates/server/src/nostr/door.rs",
    "crates/server/src/nostr/page.rs",
    "crates/server/src/nostr/vanish.rs",
    "crates/server/src/reload.rs",
    "crates/server/src/settings.rs",
    "crates/server/src/shelf.rs",
    "crates/server/src/waku/p2p/mod.rs",
    "crates/server/src/waku/p2p/peers.rs",
    "crates/server/src/waku/p2p/store.rs",
    "crates/server/src/waku/p2p/sync.rs",
    "crates/server/src/waku/rest/store.rs",
    "crates/server/src/waku/resume.rs",
    "crates/server/src/whisper/rest/messages.rs",
];

/// Words of protocols, which the archive does not know.
const PROTOCOL_WORDS: [&str; 8] =
    ["CLOSED", "NEG-", "NIP-", "AUTH", "WebSocket", "Nostr", "Waku", "Whisper"];

/// Files of the archive that have words of protocols.
const PROTOCOL_FILES: [&str; 3] = [
    "crates/archive/src/effects/mod.rs",
    "crates/archive/src/limits.rs",
    "crates/archive/src/query/mod.rs",
];

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

/// Whether some tokens begin with the error type `String` of a `Result`.
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
    let long = crate_sources().filter(|(_, text)| text.lines().count() > LINES_MAX);
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
