//! Checks of the documents: the files, tests, pages and headings that they name exist, and their
//! figures match the program.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use super::{files, has_ending, manifests, name, read, root, sources};

/// Returns texts between backticks on one line, and the words of indented drawings.
fn named(text: &str) -> Vec<String> {
    let mut named = Vec::new();
    for line in text.lines() {
        named.extend(line.split('`').skip(1).step_by(2).map(str::to_owned));
        if line.starts_with("    ") {
            named.extend(line.split_whitespace().map(str::to_owned));
        }
        // Links: [words](file)
        named.extend(
            line.split("](").skip(1).filter_map(|rest| Some(rest.split_once(')')?.0.into())),
        );
    }
    named
}

/// Expands `a/{b,c}.rs` to two names.
fn spread(name: &str) -> Vec<String> {
    let Some((before, rest)) = name.split_once('{') else { return vec![name.to_owned()] };
    let Some((inner, after)) = rest.split_once('}') else { return vec![name.to_owned()] };
    inner.split(',').flat_map(|part| spread(&format!("{before}{}{after}", part.trim()))).collect()
}

/// Whether a name means a file of this tree.
fn is_file_of_ours(name: &str) -> bool {
    let endings = [".rs", ".md", ".toml", ".sh", ".js", ".service", ".html"];
    let folders = ["crates/", "docs/", "src/", "tests/", "scripts/", "fuzz/", "deploy/", ".ci/"];
    let plain = !name.contains(|c: char| c.is_whitespace() || "*<>…$#'\"()=".contains(c));
    plain
        && !name.contains("://")
        && !name.starts_with(['-', '.', '~', '/'])
        && (endings.iter().any(|ending| name.ends_with(ending) && name.len() > ending.len())
            || folders.iter().any(|folder| name.starts_with(folder)))
}

#[test]
fn documents_name_only_files_and_tests_that_are_there() {
    let files = files();
    // Files that an operator creates, or that examples name.
    let elsewhere = ["hark.toml", "config.toml", "page.sh", "report.html", "router.toml"];
    let mut checked = 0;
    for document in files.iter().filter(|file| has_ending(file, "md")) {
        for name in named(&read(document)).iter().flat_map(|name| spread(name)) {
            // `file.rs::test` names a test in this file.
            let name = name.trim_end_matches([',', '.', ':', ';']);
            let (path, test) = name.split_once("::").map_or((name, None), |(p, t)| (p, Some(t)));
            let path = path.split('#').next().unwrap_or_default();
            if !is_file_of_ours(path) || elsewhere.contains(&path) {
                continue;
            }
            checked += 1;
            let path = path.trim_end_matches('/');
            let fits = |file: &&String| *file == path || file.ends_with(&format!("/{path}"));
            let found = files.iter().find(fits);
            let folder = root().join(path).is_dir();
            assert!(found.is_some() || folder, "{document} names {path}, which is not there");
            if let (Some(test), Some(file)) = (test, found) {
                let text = read(file);
                assert!(text.contains(&format!("fn {test}(")), "{document}: no {test} in {file}");
            }
        }
    }
    assert!(checked > 20, "only {checked} names were looked at");
}

#[test]
fn the_book_names_every_page() {
    let (contents, index) = (read("docs/SUMMARY.md"), read("docs/README.md"));
    let pages = files().into_iter().filter_map(|file| {
        let page = file.strip_prefix("docs/")?.to_owned();
        (has_ending(&page, "md") && !page.contains('/')).then_some(page)
    });
    let mut count = 0;
    for page in pages.filter(|page| page != "SUMMARY.md" && page != "README.md") {
        let link = format!("({page})");
        assert!(contents.contains(&link), "docs/SUMMARY.md does not name {page}");
        assert!(index.contains(&link), "docs/README.md does not name {page}");
        count += 1;
    }
    assert!(count > 20, "{count}");
}

/// The anchors that mdbook and GitHub make of a document's headings.
fn anchors(text: &str) -> BTreeSet<String> {
    let (mut found, mut is_code) = (BTreeSet::new(), false);
    for line in text.lines() {
        is_code ^= line.starts_with("```");
        let heading = line.trim_start_matches('#');
        if is_code || heading.len() == line.len() || !heading.starts_with(' ') {
            continue;
        }
        let kept = heading.trim().to_lowercase();
        let kept = kept.chars().filter(|c| c.is_alphanumeric() || "-_ ".contains(*c));
        let anchor: String = kept.map(|c| if c == ' ' { '-' } else { c }).collect();
        let again = (1..).map(|number| format!("{anchor}-{number}"));
        let free = std::iter::once(anchor.clone()).chain(again).find(|one| !found.contains(one));
        found.extend(free);
    }
    found
}

#[test]
fn links_of_the_documents_lead_to_their_headings() {
    let mut count = 0;
    for document in files().into_iter().filter(|file| has_ending(file, "md")) {
        let folder = Path::new(&document).parent().expect("a folder").to_owned();
        for link in read(&document).split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
            if path.contains("://") || path.contains(char::is_whitespace) {
                continue;
            }
            let target = if path.is_empty() { PathBuf::from(&document) } else { folder.join(path) };
            let target = root().join(target);
            assert!(target.exists(), "{document} links to {link}, which is not there");
            if !anchor.is_empty() && target.extension().is_some_and(|ending| ending == "md") {
                let text = fs::read_to_string(&target).expect("a document");
                assert!(anchors(&text).contains(anchor), "{document}: no heading for {link}");
                count += 1;
            }
        }
    }
    assert!(count > 50, "only {count} anchors were looked at");
}

#[test]
fn figures_of_the_readme_are_those_of_the_documents() {
    let (readme, measured) = (read("README.md"), read("docs/performance.md"));
    let (_, measured) = measured.split_once("1,000,000 events, all in memory").expect("a table");
    let mut count = 0;
    let rows = readme.lines().filter(|line| line.starts_with("  | ") && line.ends_with("x |"));
    for row in rows {
        let mut cells = row.trim().trim_matches('|').split('|').map(str::trim);
        let question = cells.next().expect("a name");
        let is_of = |line: &&str| line.trim_start().starts_with(&format!("{question}  "));
        let line = measured.lines().find(is_of).unwrap_or_else(|| panic!("no {question}"));
        let figures: Vec<&str> = line.split_whitespace().collect();
        for cell in cells {
            assert!(figures.contains(&cell), "README.md: {cell} of {question}");
            count += 1;
        }
    }
    assert_eq!(count, 5 * 5);
}

#[test]
fn architecture_walks_through_every_crate_and_states_the_invariants() {
    let text = read("ARCHITECTURE.md");
    for (file, manifest) in manifests() {
        let folder = PathBuf::from(&file);
        let folder = folder.parent().map(Path::to_string_lossy).unwrap_or_default();
        assert!(
            folder.is_empty() || text.contains(&format!("`{folder}`")),
            "ARCHITECTURE.md has nothing on {folder} ({})",
            name(&manifest)
        );
    }
    for number in 1..=8 {
        assert!(text.contains(&format!("\n{number}. **")), "invariant {number} is missing");
    }
}

#[test]
fn the_format_is_documented_down_to_its_magic() {
    let document = read("docs/format.md");
    let mut found = BTreeSet::new();
    for (file, text) in sources().filter(|(file, _)| file.starts_with("crates/store-embedded/src/"))
    {
        for magic in text.split("b\"HARK").skip(1).filter_map(|rest| rest.split('"').next()) {
            assert!(document.contains(&format!("\"HARK{magic}\"")), "{file}: HARK{magic}");
            found.insert(magic.to_owned());
        }
    }
    assert!(found.len() >= 4, "{found:?}");
    let shown = document.split("\"HARK").skip(1).filter_map(|rest| rest.split('"').next());
    for magic in shown {
        assert!(found.contains(magic), "docs/format.md shows HARK{magic}, which no file has");
    }
    let manifest = read("crates/store-embedded/src/manifest.rs");
    let version = manifest.split("VERSION: u32 = ").nth(1).and_then(|rest| rest.split(';').next());
    let first_line = format!("hark-shelf {}\n", version.expect("the format's version"));
    assert!(document.contains(&first_line), "docs/format.md: MANIFEST's first line");
}
