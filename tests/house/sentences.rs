//! Sentences of comments and documents must be understood at the first reading: their subject is a
//! noun, and they do not end with a pronoun.

use std::fmt::Write as _;

use super::{files, has_ending, read};

/// Sentences are words separated by single spaces.
fn sentences(paragraph: &str) -> Vec<String> {
    let mut found = vec![String::new()];
    let mut words = paragraph.split_whitespace().peekable();
    while let Some(word) = words.next() {
        let sentence = found.last_mut().expect("one at least");
        if !sentence.is_empty() {
            sentence.push(' ');
        }
        sentence.push_str(word);
        let begins =
            |next: &&str| next.starts_with(|c: char| c.is_ascii_uppercase() || "`*[".contains(c));
        if word.ends_with(['.', '!', '?']) && words.peek().is_some_and(begins) {
            found.push(String::new());
        }
    }
    found
}

/// The paragraphs of comments in a source file.
fn comments(text: &str) -> Vec<String> {
    let (mut found, mut kind, mut is_code) = (vec![String::new()], "", false);
    for line in text.lines() {
        let line = line.trim_start();
        let Some(rest) = line.strip_prefix("//").filter(|rest| !rest.starts_with("//")) else {
            (kind, is_code) = ("", false);
            found.push(String::new());
            continue;
        };
        let here = if rest.starts_with('/') {
            "/"
        } else if rest.starts_with('!') {
            "!"
        } else {
            ""
        };
        let rest = &rest[here.len()..];
        let rest = rest.strip_prefix(' ').unwrap_or(rest);
        let fence = rest.starts_with("```");
        if fence || is_code || rest.trim().is_empty() || rest.starts_with("    ") || here != kind {
            found.push(String::new());
        }
        if !(fence || is_code || rest.starts_with("    ") || rest.starts_with(['#', '|'])) {
            add(&mut found, rest);
        }
        is_code ^= fence;
        kind = here;
    }
    found
}

/// The paragraphs of a document, without tables, headings and code.
fn paragraphs(text: &str) -> Vec<String> {
    let (mut found, mut is_code) = (vec![String::new()], false);
    for line in text.lines() {
        let fence = line.starts_with("```");
        let item = line.trim_start();
        let is_item = item.starts_with(['-', '*']) && item[1..].starts_with(' ');
        if fence || is_code || item.is_empty() || line.starts_with(['#', '|']) || is_item {
            found.push(String::new());
        }
        let last = found.last().is_some_and(String::is_empty);
        let is_block = line.starts_with("    ") && last;
        if !(fence || is_code || is_block || line.starts_with(['#', '|'])) {
            add(&mut found, item);
        }
        is_code ^= fence;
    }
    found
}

/// Adds a line to the last paragraph.
fn add(found: &mut [String], line: &str) {
    let line = line.trim();
    let line = line.strip_prefix("- ").or(line.strip_prefix("* ")).unwrap_or(line);
    let last = found.last_mut().expect("one at least");
    if !last.is_empty() {
        last.push(' ');
    }
    last.push_str(line);
}

/// The words before a clause that begins with `what`.
const BEFORE: [&str; 15] = [
    "and", "or", "of", "to", "for", "in", "with", "by", "from", "as", "than", "on", "if", "that",
    "",
];

/// Why a sentence is likely to be read twice.
fn fault(sentence: &str) -> Option<&'static str> {
    let words: Vec<&str> = sentence.split(' ').collect();
    let first = words[0];
    if ["What", "Whoever", "Who", "Whatever", "Which"].contains(&first) && !sentence.contains('?') {
        return Some("its subject is a clause");
    }
    let is_clause = |pair: &[&str]| {
        pair[1] == "what" && (BEFORE.contains(&pair[0]) || pair[0].ends_with([',', ';', ':']))
    };
    if words.windows(2).any(is_clause) {
        return Some("a clause with `what` stands for a noun");
    }
    let last = words[words.len() - 1].trim_end_matches(['.', ';']);
    let verbs = ["is", "was", "are", "has", "does", "do", "did"];
    let last = if verbs.contains(&last) { *words.iter().rev().nth(1)? } else { last };
    let is_count =
        words.len() > 1 && ["least", "most", "plus", "than"].contains(&words[words.len() - 2]);
    let pronouns = ["that", "those", "this", "it", "them", "so", "one"];
    (pronouns.contains(&last) && !is_count).then_some("it ends with a pronoun")
}

#[test]
fn sentences_are_understood_at_the_first_reading() {
    let mut listed = String::new();
    for file in files() {
        let paragraphs = match () {
            () if has_ending(&file, "rs") => comments(&read(&file)),
            () if has_ending(&file, "md") && !file.starts_with("tests/") => {
                paragraphs(&read(&file))
            }
            () => continue,
        };
        for sentence in paragraphs.iter().flat_map(|paragraph| sentences(paragraph)) {
            if let Some(fault) = fault(&sentence) {
                writeln!(listed, "{file}: {fault}: {sentence}").expect("a string grows");
            }
        }
    }
    assert!(listed.is_empty(), "sentences to rewrite:\n{listed}");
}

#[test]
fn faults_of_sentences_are_found() {
    for (sentence, is_fault) in [
        ("What a range is taken back to.", true),
        ("What is a range?", false),
        ("The caller passes it.", true),
        ("The caller passes the id.", false),
        ("A name for what comes next.", true),
        ("Returns whether there is one.", true),
        ("Returns at least one.", false),
    ] {
        assert_eq!(fault(sentence).is_some(), is_fault, "{sentence}");
    }
    let text = "/// One. Two\n/// three.\n///\n///     code\nfn f() {} // not here\n//! Four\n";
    let found: Vec<_> = comments(text).iter().flat_map(|paragraph| sentences(paragraph)).collect();
    let found: Vec<_> =
        found.iter().map(String::as_str).filter(|found| !found.is_empty()).collect();
    assert_eq!(found, ["One.", "Two three.", "Four"]);
}
