//! The rules of the source tree: allowed dependencies between crates, and words and types that only
//! some files may contain. The modules have the rules of documents, files, names and sentences.

mod circles;
mod deploy;
mod documents;
mod metrics;
mod names;
mod packages;
mod sentences;
mod structure;
mod tokens;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// The tree's root.
fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Folders of generated files; `.git` is a file in a second work tree.
const MADE: [&str; 8] =
    ["target", ".git", "node_modules", "data", "corpus", "artifacts", "coverage", "seeds"];

/// Returns all files that are not generated, relative to the root, with forward slashes.
fn files() -> Vec<String> {
    fn walk(folder: &Path, files: &mut Vec<String>) {
        for entry in fs::read_dir(folder).expect("a folder of ours") {
            let path = entry.expect("an entry").path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if MADE.contains(&name.as_str()) {
                continue;
            }
            if path.is_dir() {
                walk(&path, files);
            } else {
                let path = path.strip_prefix(root()).expect("within the root");
                files.push(path.to_string_lossy().replace('\\', "/"));
            }
        }
    }
    let mut files = Vec::new();
    walk(root(), &mut files);
    files.sort();
    files
}

fn read(file: &str) -> String {
    fs::read_to_string(root().join(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

fn has_ending(file: &str, ending: &str) -> bool {
    Path::new(file).extension().is_some_and(|found| found == ending)
}

fn sources() -> impl Iterator<Item = (String, String)> {
    files().into_iter().filter(|file| has_ending(file, "rs")).map(|file| {
        let text = read(&file);
        (file, text)
    })
}

/// The crates that each crate may depend on. Dependencies that are not listed are not allowed.
///
/// `hark-bench` drives any server by its URL, and opens archives with the library of `hark`. Only
/// the benchmark that counts instructions depends on the code that it measures. `hark-testkit` has
/// the code that tests of several crates share, and no shipped crate depends on `hark-testkit`.
const ARROWS: [(&str, &[&str], &[&str]); 12] = [
    ("hark-codec", &[], &["hark-testkit"]),
    ("hark-words", &[], &[]),
    ("hark-archive", &["hark-codec", "hark-words"], &["hark-testkit"]),
    ("hark-networks", &["hark-codec", "hark-archive", "hark-words"], &[]),
    (
        "hark-store-embedded",
        &["hark-codec", "hark-archive", "hark-words"],
        &["hark-networks", "hark-testkit"],
    ),
    (
        "hark-store-postgres",
        &["hark-codec", "hark-archive", "hark-words"],
        &["hark-networks", "hark-testkit"],
    ),
    ("hark-plugin", &["hark-codec", "hark-archive"], &[]),
    (
        "hark-server",
        &["hark-codec", "hark-archive", "hark-networks", "hark-plugin"],
        &["hark-testkit"],
    ),
    (
        "hark-peers",
        &["hark-codec", "hark-archive", "hark-networks", "hark-plugin"],
        &["hark-testkit"],
    ),
    (
        "hark-testkit",
        // Only the parts of the server that a test network needs.
        &[
            "hark-codec",
            "hark-words",
            "hark-archive",
            "hark-networks",
            "hark-store-embedded",
            "hark-server",
        ],
        &[],
    ),
    (
        "hark-bench",
        &["hark-codec", "hark-archive", "hark-networks", "hark"],
        &["hark-store-embedded", "hark-testkit"],
    ),
    (
        "hark",
        &[
            "hark-codec",
            "hark-archive",
            "hark-networks",
            "hark-store-embedded",
            "hark-store-postgres",
            "hark-server",
            "hark-peers",
            "hark-plugin",
        ],
        &["hark-testkit", "hark-words"],
    ),
];

fn manifests() -> Vec<(String, toml::Table)> {
    let mut found = vec!["Cargo.toml".to_owned()];
    let in_crates = |file: &String| file.starts_with("crates/") && file.ends_with("/Cargo.toml");
    found.extend(files().into_iter().filter(in_crates));
    let parse = |file: String| (file.clone(), read(&file).parse().expect("a manifest"));
    found.into_iter().map(parse).collect()
}

fn dependencies(manifest: &toml::Table, section: &str) -> BTreeSet<String> {
    let table = manifest.get(section).and_then(toml::Value::as_table);
    table.into_iter().flat_map(|table| table.keys().cloned()).collect()
}

fn name(manifest: &toml::Table) -> &str {
    manifest["package"]["name"].as_str().expect("a name")
}

#[test]
fn arrows_between_crates_point_one_way() {
    for (file, manifest) in manifests() {
        let name = name(&manifest);
        let (_, may, tests_may) = ARROWS
            .iter()
            .find(|(known, ..)| *known == name)
            .unwrap_or_else(|| panic!("{file}: say in tests/house.rs whom {name} may know"));
        for section in ["dependencies", "build-dependencies", "dev-dependencies"] {
            for dependency in dependencies(&manifest, section) {
                let allowed = may.contains(&dependency.as_str())
                    || section == "dev-dependencies" && tests_may.contains(&dependency.as_str());
                assert!(
                    !dependency.starts_with("hark") || allowed,
                    "{file}: {name} must not know {dependency} ({section})"
                );
            }
        }
    }
}

#[test]
fn every_crate_takes_lints_and_versions_from_the_workspace() {
    for (file, manifest) in manifests() {
        let lints = manifest.get("lints").and_then(|lints| lints.get("workspace"));
        assert_eq!(lints.and_then(toml::Value::as_bool), Some(true), "{file}: [lints]");
        for section in ["dependencies", "build-dependencies", "dev-dependencies"] {
            let table = manifest.get(section).and_then(toml::Value::as_table);
            for (name, value) in table.into_iter().flatten() {
                let inherited = value.get("workspace").and_then(toml::Value::as_bool);
                assert_eq!(
                    inherited,
                    Some(true),
                    "{file}: {name} is chosen in the root Cargo.toml"
                );
            }
        }
    }
}

/// Words that a crate's sources must not contain, with the reason.
const KEPT_OUT: [(&str, &[&str], &str); 4] = [
    (
        "crates/codec/src/",
        &["std::fs", "std::net", "std::env", "std::time", "std::thread", "println!"],
        "codec does no I/O and knows no clock",
    ),
    (
        "crates/networks/src/",
        &["std::fs", "std::net", "std::time", "tokio", "async fn", ".await"],
        "a network does no I/O, reads no clock and needs no async runtime",
    ),
    (
        "crates/archive/src/",
        &["std::fs", "std::net", "tokio", "serde_json", "async fn", ".await"],
        "archive knows no file, no socket, no protocol text and no async runtime",
    ),
    (
        "crates/store-embedded/src/",
        &["std::net", "tokio", "serde_json", "async fn", ".await"],
        "a store knows no socket, no protocol text and no async runtime",
    ),
];

/// Places that may name a network, with the reason.
const NAMED: [(&str, &str); 25] = [
    ("crates/codec/src/nostr/", "its folder"),
    ("crates/codec/src/waku/", "its folder"),
    ("crates/codec/src/whisper/", "its folder"),
    ("crates/networks/src/nostr/", "its folder"),
    ("crates/networks/src/waku/", "its folder"),
    ("crates/networks/src/whisper/", "its folder"),
    ("crates/server/src/nostr/", "its folder"),
    ("crates/server/src/waku/", "its folder"),
    ("crates/server/src/whisper/", "its folder"),
    ("crates/server/src/moderation/", "the keys, ids and kinds of bans are those of events"),
    ("crates/codec/src/lib.rs", "the list of folders"),
    ("crates/networks/src/lib.rs", "the list of folders"),
    ("crates/server/src/lib.rs", "the list of folders"),
    ("src/config/", "its settings, and the list of networks"),
    ("src/cli.rs", "the list of commands"),
    ("src/lib.rs", "the list of commands"),
    ("src/commands/mod.rs", "the list of commands"),
    ("src/commands/waku.rs", "its command"),
    ("src/commands/whisper.rs", "its command"),
    ("src/commands/adopt/", "reads a relay's database, and nothing else"),
    ("src/commands/reports.rs", "reports are events"),
    ("src/commands/relays/", "speak with relays, and nothing else"),
    ("crates/bench/", "shapes of what is asked"),
    ("crates/peers/", "the client of relays"),
    ("crates/testkit/", "for tests"),
];

/// A network's code is in its folders. Adding a network changes only its folders, its settings and
/// one list.
#[test]
fn networks_are_named_in_their_folders_only() {
    let mut seen = BTreeSet::new();
    for (file, text) in sources() {
        let of_tests = ["tests/", "/benches/", "/examples/", "fuzz/"];
        let is_test = of_tests.iter().any(|part| file.contains(part));
        let named = NAMED.iter().find(|(place, _)| file.starts_with(place));
        for (at, line) in text.split("#[cfg(test)]").next().unwrap_or_default().lines().enumerate()
        {
            // These are names of another program.
            let line = line.to_lowercase().replace("nostream", "").replace("nostr_ts_relay", "");
            if ["nostr", "waku", "whisper"].iter().any(|name| line.contains(name)) {
                seen.extend(named.map(|(place, _)| *place));
                assert!(is_test || named.is_some(), "{file}:{}: {line}", at + 1);
            }
        }
    }
    let unused: Vec<_> = NAMED.iter().filter(|(place, _)| !seen.contains(place)).collect();
    assert!(unused.is_empty(), "nothing is named in {unused:?}");
    // The toy network may be named in its own file, in the file that adds the network, and in
    // tests.
    let toys = [
        "crates/testkit/src/toy.rs",
        "crates/testkit/src/lib.rs",
        "crates/server/tests/service.rs",
        "examples/toy.rs",
        "tests/",
    ];
    for (file, text) in sources() {
        let text = text.split("#[cfg(test)]").next().unwrap_or_default();
        let names =
            text.split(|c: char| !c.is_alphanumeric()).any(|word| word.to_lowercase() == "toy");
        assert!(!names || toys.iter().any(|place| file.starts_with(place)), "{file} names the toy");
    }
    let lines = read("crates/testkit/src/toy.rs").lines().count();
    assert!(lines <= 180, "a network takes no more than 180 lines, and the toy has {lines}");
}

/// Lines of code, without comments.
fn code(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let numbered = text.lines().enumerate().map(|(at, line)| (at + 1, line));
    numbered.map(|(at, line)| (at, line.split("//").next().unwrap_or_default()))
}

#[test]
fn what_is_kept_out_of_a_crate_stays_out() {
    for (file, text) in sources() {
        for (folder, words, why) in &KEPT_OUT {
            if !file.starts_with(folder) || file.ends_with("/tests.rs") {
                continue;
            }
            for (at, line) in code(text.split("#[cfg(test)]").next().unwrap_or_default()) {
                let found = words.iter().find(|word| line.contains(**word));
                assert_eq!(found, None, "{file}:{at}: {why}");
            }
        }
    }
}

/// Type names that are declared more than once, with the reason.
const SHARED_TYPE_NAMES: [(&str, &str); 0] = [];

/// The names of the types that a source file declares outside of its tests. Indented `type` lines
/// are skipped: these are associated types, which get their names from traits.
fn type_names(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let shipped = text.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
    code(shipped).filter_map(|(at, line)| {
        let item = line.trim_start();
        let item = match item.strip_prefix("pub(").and_then(|rest| rest.split_once(") ")) {
            Some((_, item)) => item,
            None => item.strip_prefix("pub ").unwrap_or(item),
        };
        let (keyword, rest) = item.split_once(' ')?;
        let declares = match keyword {
            "struct" | "enum" | "trait" | "union" => true,
            "type" => !line.starts_with(' '),
            _ => false,
        };
        let name =
            rest.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default();
        (declares && name.starts_with(|c: char| c.is_ascii_uppercase())).then_some((at, name))
    })
}

/// Each name of a type is declared once, since a reader has to look up an ambiguous name at each
/// use.
#[test]
fn type_names_mean_one_thing() {
    let files: Vec<_> = sources().collect();
    // Modules of tests in separate files.
    let mut of_tests = vec!["crates/testkit/".to_owned()];
    for (file, text) in &files {
        let folder = file.trim_end_matches(".rs").trim_end_matches("/mod").trim_end_matches("/lib");
        for rest in text.split("#[cfg(test)]\nmod ").skip(1) {
            let name = rest.split([';', ' ']).next().unwrap_or_default();
            of_tests.extend([format!("{folder}/{name}.rs"), format!("{folder}/{name}/")]);
        }
    }
    let mut declared: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for (file, text) in &files {
        let is_source = file.starts_with("src/") || file.contains("/src/");
        if is_source
            && (file.starts_with("crates/") || file.starts_with("src/"))
            && !of_tests.iter().any(|test| file.starts_with(test))
        {
            for (at, name) in type_names(text) {
                declared.entry(name).or_default().push(format!("{file}:{at}"));
            }
        }
    }
    assert!(declared.len() > 400, "only {} names were found", declared.len());
    declared.retain(|_, places| places.len() > 1);
    for (name, _) in SHARED_TYPE_NAMES {
        let found = declared.remove(name);
        assert!(found.is_some(), "{name} is declared once: shorten the list");
    }
    assert!(
        declared.is_empty(),
        "give each its own name, the field's noun for what it is: {declared:#?}"
    );
}

#[test]
fn only_three_files_and_the_counting_allocator_use_unsafe() {
    let mut expected = BTreeSet::from([
        "crates/codec/src/hex.rs",
        "crates/codec/src/scan.rs",
        "crates/store-embedded/src/map.rs",
        "crates/testkit/src/allocations.rs",
    ]);
    let word = concat!("uns", "afe");
    for (file, text) in sources() {
        let words = |line: &str| {
            line.split(|c: char| !c.is_alphanumeric() && c != '_').any(|found| found == word)
        };
        let uses = code(&text).any(|(_, line)| words(line) && !line.contains('"'));
        let listed = expected.remove(file.as_str());
        assert!(!uses || listed, "{file} has {word} code");
    }
    assert_eq!(expected, BTreeSet::new(), "no longer needed here: shorten the list");
    for crate_root in ["crates/codec/src/lib.rs", "crates/store-embedded/src/lib.rs"] {
        assert!(!read(crate_root).contains("allow(unsafe"), "{crate_root} allows it everywhere");
    }
}

#[test]
fn every_source_file_says_what_it_is_for() {
    for (file, text) in sources() {
        assert!(text.starts_with("//!"), "{file} does not begin with `//!` and what it is for");
    }
}

#[test]
fn no_path_of_a_developers_machine_is_in_the_tree() {
    let homes = [concat!("/ro", "ot/"), concat!("/ho", "me/"), concat!("/Us", "ers/")];
    let others = [concat!("/wo", "rk/"), concat!("C:", "\\Users")];
    for file in files() {
        let Ok(text) = fs::read_to_string(root().join(&file)) else { continue };
        for path in homes.iter().chain(&others) {
            let found = text.lines().position(|line| line.contains(path));
            assert_eq!(found.map(|at| at + 1), None, "{file} names {path}…");
        }
    }
}
