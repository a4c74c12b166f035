//! The libraries that other programs can use: their packages are complete, and need nothing that is
//! not published.

use super::{dependencies, manifests, name, read, root};

/// The crates that are published, in the order in which they are published.
const PUBLISHED: [&str; 5] =
    ["hark-codec", "hark-words", "hark-archive", "hark-networks", "hark-store-embedded"];

/// The files that a package may have, besides its manifest. Tests and benches need the test kit,
/// which is not published.
const INCLUDED: [&str; 4] = ["/src/**/*.rs", "/examples/*.rs", "/README.md", "/LICENSE-*"];

/// The order of publication of a crate. `None` if the crate is not published.
fn order(name: &str) -> Option<usize> {
    PUBLISHED.iter().position(|published| *published == name)
}

/// The manifests of the published crates, each with its folder.
fn published() -> impl Iterator<Item = (String, toml::Table)> {
    manifests()
        .into_iter()
        .filter(|(_, manifest)| order(name(manifest)).is_some())
        .map(|(file, manifest)| (file.trim_end_matches("/Cargo.toml").to_owned(), manifest))
}

/// The texts of a list in a manifest's `[package]`.
fn texts<'m>(manifest: &'m toml::Table, key: &str) -> Vec<&'m str> {
    let list = manifest["package"].get(key).and_then(toml::Value::as_array);
    list.into_iter().flatten().filter_map(toml::Value::as_str).collect()
}

#[test]
fn the_libraries_are_published_and_nothing_else_is() {
    for (file, manifest) in manifests() {
        let publish = manifest["package"].get("publish").expect("each crate says so");
        let inherited = publish.get("workspace").and_then(toml::Value::as_bool);
        let is_published = publish.as_bool().or(inherited.map(|_| false));
        let expected = order(name(&manifest)).is_some();
        assert_eq!(is_published, Some(expected), "{file}: publish");
    }
    let root: toml::Table = read("Cargo.toml").parse().expect("a manifest");
    assert_eq!(root["workspace"]["package"]["publish"].as_bool(), Some(false));
    assert_eq!(published().count(), PUBLISHED.len());
}

#[test]
fn packages_say_what_they_are_and_have_their_readme_and_licences() {
    for (folder, manifest) in published() {
        let package = manifest["package"].as_table().expect("a table");
        let text = |key: &str| package.get(key).and_then(toml::Value::as_str).unwrap_or_default();
        assert!(text("description").len() > 40, "{folder}: description");
        for key in ["version", "edition", "rust-version", "license"] {
            let inherited = package[key].get("workspace").and_then(toml::Value::as_bool);
            assert_eq!(inherited, Some(true), "{folder}: {key}");
        }
        // The bounds of crates.io.
        for key in ["keywords", "categories"] {
            let words = texts(&manifest, key);
            assert!((1..=5).contains(&words.len()), "{folder}: {key}");
            let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
            assert!(words.iter().all(|word| word.chars().all(is_plain)), "{folder}: {words:?}");
        }
        assert!(texts(&manifest, "keywords").iter().all(|word| word.len() <= 20), "{folder}");
        assert_eq!(text("readme"), "README.md", "{folder}: readme");
        let readme = read(&format!("{folder}/README.md"));
        assert!(readme.starts_with(&format!("# {}\n", name(&manifest))), "{folder}: title");
        // This line turns the examples of the readme into tests.
        let library = read(&format!("{folder}/src/lib.rs"));
        assert!(library.contains("#![doc = include_str!(\"../README.md\")]"), "{folder}");
        for licence in ["LICENSE-MIT", "LICENSE-APACHE"] {
            assert_eq!(read(&format!("{folder}/{licence}")), read(licence), "{folder}");
        }
    }
}

#[test]
fn packages_have_the_library_and_no_tests() {
    for (folder, manifest) in published() {
        let included = texts(&manifest, "include");
        let unknown: Vec<_> = included.iter().filter(|file| !INCLUDED.contains(file)).collect();
        assert!(unknown.is_empty(), "{folder} includes {unknown:?}");
        for needed in ["/src/**/*.rs", "/README.md", "/LICENSE-*"] {
            assert!(included.contains(&needed), "{folder} leaves {needed} out");
        }
        let examples = root().join(&folder).join("examples");
        assert_eq!(examples.is_dir(), included.contains(&"/examples/*.rs"), "{folder}: examples");
    }
}

/// A package may not depend on a crate that is published later or never. Only dev-dependencies
/// without a version are left out of a package.
#[test]
fn packages_depend_on_packages_alone() {
    let root: toml::Table = read("Cargo.toml").parse().expect("a manifest");
    let workspace = &root["workspace"];
    for (dependency, value) in workspace["dependencies"].as_table().expect("a table") {
        if !dependency.starts_with("hark") {
            continue;
        }
        let version = value.get("version").and_then(toml::Value::as_str);
        let expected = order(dependency).and(workspace["package"]["version"].as_str());
        assert_eq!(version, expected, "Cargo.toml: the version of {dependency}");
    }
    for (folder, manifest) in published() {
        let own = order(name(&manifest));
        for section in ["dependencies", "build-dependencies", "dev-dependencies"] {
            for dependency in dependencies(&manifest, section) {
                if !dependency.starts_with("hark") {
                    continue;
                }
                let is_before = order(&dependency).is_some() && order(&dependency) < own;
                let is_left_out = section == "dev-dependencies" && order(&dependency).is_none();
                assert!(is_before || is_left_out, "{folder}: {dependency} is not published before");
            }
        }
    }
}

/// The program is compiled and run twice: from the readme as a test of documents, and as an example
/// by `scripts/test`.
#[test]
fn documents_show_the_whole_example() {
    let example = read("crates/store-embedded/examples/embed.rs");
    let (_, program) = example.split_once("\n\n").expect("a comment, then the program");
    for document in ["crates/store-embedded/README.md", "docs/embedding.md"] {
        let shown = read(document).contains(&format!("```rust\n{program}```\n"));
        assert!(shown, "{document} shows other lines");
    }
    let main = program.split("fn main()").nth(1).expect("a program");
    let is_code = |line: &&str| !line.trim().is_empty() && !line.trim().starts_with("//");
    assert!(main.lines().filter(is_code).count() <= 24, "a beginner reads some 20 lines");
}

#[test]
fn the_oldest_rust_is_the_same_everywhere() {
    let root: toml::Table = read("Cargo.toml").parse().expect("a manifest");
    let version = root["workspace"]["package"]["rust-version"].as_str().expect("a version");
    for page in ["README.md", "docs/install.md"] {
        let named = read(page).contains(&format!("Rust {version} or newer"));
        assert!(named, "{page} names another version of Rust");
    }
    let image = read("deploy/Dockerfile");
    assert!(image.contains(&format!("FROM rust:{version}-")), "the image has another Rust");
}
