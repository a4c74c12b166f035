//! Tokens of Rust sources, for the tests that read code: words, `::` and single signs. Comments,
//! literals and tests are left out.

use super::sources;

/// A module's path, which begins with the name of its crate.
pub(super) type ModulePath = Vec<String>;

/// A source file of a crate.
pub(super) struct SourceFile {
    pub(super) module: ModulePath,
    pub(super) file: String,
    pub(super) text: String,
}

/// The path of a file's module; `None` if the file is not in a crate's sources.
fn module(file: &str) -> Option<ModulePath> {
    let (name, inner) = match file.strip_prefix("crates/") {
        Some(rest) => {
            rest.split_once("/src/").map(|(name, rest)| (format!("hark-{name}"), rest))?
        }
        None => ("hark".to_owned(), file.strip_prefix("src/")?),
    };
    let mut path = vec![name.replace('-', "_")];
    path.extend(inner.strip_suffix(".rs")?.split('/').map(str::to_owned));
    path.pop_if(|last| ["mod", "lib"].contains(&last.as_str()));
    Some(path)
}

/// The test modules that a file declares, and that have files of their own.
fn test_modules(text: &str) -> Vec<&str> {
    let (mut found, mut is_test) = (Vec::new(), false);
    for line in text.lines() {
        is_test |= line.starts_with("#[cfg(test") || line.starts_with("#[cfg(all(test");
        if is_test && !line.starts_with("#[") {
            let name = line.split_once("mod ").and_then(|(_, rest)| rest.strip_suffix(';'));
            found.extend(name);
            is_test = false;
        }
    }
    found
}

/// The source files of all crates, without files of tests.
pub(super) fn shipped_sources() -> Vec<SourceFile> {
    let file =
        |(file, text): (String, String)| Some(SourceFile { module: module(&file)?, file, text });
    let mut found: Vec<_> = sources().filter_map(file).collect();
    let mut of_tests: Vec<ModulePath> = Vec::new();
    for source in &found {
        let below = |name: &str| [&source.module[..], &[name.to_owned()]].concat();
        of_tests.extend(test_modules(&source.text).into_iter().map(below));
    }
    found.retain(|source| !of_tests.iter().any(|tests| source.module.starts_with(tests)));
    found
}

/// Words that begin an item, after `pub`.
const ITEMS: [&str; 12] = [
    "mod", "use", "fn", "impl", "struct", "enum", "trait", "type", "const", "static", "async",
    "unsafe",
];

/// Returns the tokens of a source file.
pub(super) fn tokens(text: &str) -> Vec<&str> {
    let (mut found, mut rest) = (Vec::new(), text);
    while let Some(first) = rest.chars().next() {
        let skipped = comment(rest).or_else(|| literal(rest));
        let length = skipped.unwrap_or_else(|| match first {
            _ if is_word(first) => rest.find(|c| !is_word(c)).unwrap_or(rest.len()),
            ':' if rest.starts_with("::") => 2,
            _ => first.len_utf8(),
        });
        let (token, after) = rest.split_at(length);
        if skipped.is_none() && !first.is_whitespace() {
            found.push(token);
        }
        rest = after;
    }
    found
}

pub(super) fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Returns the length of a comment at the beginning of `text`.
fn comment(text: &str) -> Option<usize> {
    let end = |mark: &str| text.find(mark).map(|at| at + mark.len()).or(Some(text.len()));
    match text.get(..2)? {
        "//" => end("\n"),
        "/*" => end("*/"),
        _ => None,
    }
}

/// Returns the length of a string, a character or a lifetime at the beginning of `text`.
fn literal(text: &str) -> Option<usize> {
    let rest = text.trim_start_matches(['b', 'c']);
    // After several of these letters, the text is a word and not a literal.
    let prefix = text.len() - rest.len();
    if prefix > 1 {
        return None;
    }
    if let Some(after) = rest.strip_prefix('r') {
        let hashes = after.len() - after.trim_start_matches('#').len();
        let inner = after[hashes..].strip_prefix('"')?;
        let end = format!("\"{}", "#".repeat(hashes));
        let length = inner.find(&end).map_or(inner.len(), |at| at + end.len());
        return Some(text.len() - inner.len() + length);
    }
    let quote = rest.chars().next().filter(|quote| "\"'".contains(*quote))?;
    let inner = &rest[1..];
    let mut after = inner.chars().skip(1);
    if quote == '\'' && !inner.starts_with('\\') && after.next() != Some('\'') {
        let name = inner.find(|c| !is_word(c)).unwrap_or(inner.len());
        return Some(prefix + 1 + name);
    }
    let mut is_escaped = false;
    let end = inner.find(|c| {
        let is_end = c == quote && !is_escaped;
        is_escaped = c == '\\' && !is_escaped;
        is_end
    });
    Some(prefix + 1 + end.map_or(inner.len(), |at| at + 1))
}

/// Leaves out the items that only tests have.
pub(super) fn shipped<'a>(tokens: &[&'a str]) -> Vec<&'a str> {
    let (mut found, mut at) = (Vec::new(), 0);
    while at < tokens.len() {
        let is_test = matches!(tokens[at..], ["#", "[", "cfg", "(", "test", ..])
            || matches!(tokens[at..], ["#", "[", "cfg", "(", "all", "(", "test", ..]);
        if is_test && let Some(end) = item_end(tokens, at) {
            at = end;
        } else {
            found.push(tokens[at]);
            at += 1;
        }
    }
    found
}

/// The end of the item that has the attribute at `at`; `None` for a field, a statement or a branch.
fn item_end(tokens: &[&str], at: usize) -> Option<usize> {
    let mut begin = at;
    while tokens.get(begin) == Some(&"#") {
        begin = group(tokens, begin + 1);
    }
    if tokens.get(begin) == Some(&"pub") {
        begin += 1;
        if tokens.get(begin) == Some(&"(") {
            begin = group(tokens, begin);
        }
    }
    if !ITEMS.contains(tokens.get(begin)?) {
        return None;
    }
    let (mut end, is_use) = (begin, tokens[begin] == "use");
    while end < tokens.len() {
        match tokens[end] {
            ";" => return Some(end + 1),
            "{" if !is_use => return Some(group(tokens, end)),
            "{" | "(" | "[" => end = group(tokens, end),
            _ => end += 1,
        }
    }
    Some(end)
}

/// The end of the group in brackets that begins at `at`.
pub(super) fn group(tokens: &[&str], at: usize) -> usize {
    let mut depth = 0_usize;
    for (end, token) in tokens.iter().enumerate().skip(at) {
        match *token {
            "{" | "(" | "[" => depth += 1,
            "}" | ")" | "]" => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return end + 1;
        }
    }
    tokens.len()
}

#[test]
fn tokens_are_read_without_comments_literals_and_tests() {
    let text = r##"
        use a::b; // c::d
        fn f<'a>(x: &'a str) -> char { let _ = (b'x', '\'', "\"e::f", r#"g"h"#, bytes); 'i' }
        #[cfg(test)]
        pub(crate) use j::{k, l};
        #[cfg(test)]
        mod tests;
        /* m */ #[cfg(all(test, unix))]
        #[allow(dead_code)]
        fn n() -> [u8; 3] { [0; 3] }
        const O: [u8; 2] = [1; 2];
    "##;
    let all = tokens(text);
    let found = shipped(&all);
    assert_eq!(
        found.join(" "),
        "use a :: b ; fn f < > ( x : & str ) -> char { let _ = ( , , , , bytes ) ; } \
         const O : [ u8 ; 2 ] = [ 1 ; 2 ] ;"
            .replace("->", "- >")
    );
    let text =
        "#[cfg(test)]\nmod a;\nmod b;\n#[cfg(test)]\n#[allow(c)]\nmod d;\n#[cfg(test)]\nmod e {";
    assert_eq!(test_modules(text), ["a", "d"]);
}
