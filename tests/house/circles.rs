//! Circles of files within a crate: files that use items of each other, directly or through other
//! files. Nobody can understand or change one file of a circle alone.
//!
//! A file that names an item, in a `use` or by a path, uses the file that defines the item.
//! Re-exports are followed to this file. Methods are not followed, and code for tests is left out.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use super::tokens::{ModulePath, SourceFile, group, is_word, shipped, shipped_sources, tokens};

/// The existing circles. Each is written as the common folder and the names of its files.
const CIRCLES: [&str; 2] = [
    "crates/server/src/: admin/http.rs admin/prometheus.rs door.rs",
    "crates/server/src/nostr/: outbox.rs outboxes.rs readers.rs",
];
/// Maximum number of circles.
const CIRCLES_MAX: usize = 8;
/// Maximum number of files in a circle.
const FILES_MAX: usize = 4;

/// A name in a `use`.
struct UsedName {
    /// The path, which ends with `*` for all names of a module.
    path: Vec<String>,
    /// The name in this file.
    name: String,
    is_public: bool,
}

/// A source file: the items that it defines, and the names and paths that it uses.
struct ModuleFile {
    file: String,
    /// The names of the items that the file defines.
    defined: BTreeSet<String>,
    used: Vec<UsedName>,
    /// Paths outside of `use`, each of two names or more.
    paths: Vec<Vec<String>>,
}

/// All source files by the paths of their modules.
struct ModuleTree(BTreeMap<ModulePath, ModuleFile>);

/// The names that a file defines outside of functions and modules.
fn defined(tokens: &[&str]) -> BTreeSet<String> {
    let keywords = ["struct", "enum", "union", "type", "trait", "fn", "const", "static"];
    let (mut found, mut at) = (BTreeSet::new(), 0);
    while at < tokens.len() {
        let name = match tokens[at..] {
            ["macro_rules", "!", name, ..] => Some(name),
            [keyword, name, ..] if keywords.contains(&keyword) => Some(name),
            _ => None,
        };
        found.extend(name.map(str::to_owned));
        at = if ["{", "(", "["].contains(&tokens[at]) { group(tokens, at) } else { at + 1 };
    }
    found
}

/// Reads one branch of the tree of a `use`. `before` is the path before this branch. Returns the
/// end of the branch.
fn read_use(
    tokens: &[&str],
    mut at: usize,
    before: &[String],
    found: &mut Vec<(Vec<String>, String)>,
) -> usize {
    let mut path = before.to_vec();
    while at < tokens.len() {
        match tokens[at] {
            "::" => at += 1,
            "{" => {
                let end = group(tokens, at);
                at += 1;
                while at < end - 1 {
                    at = read_use(tokens, at, &path, found);
                    at += usize::from(tokens[at] == ",");
                }
                return end;
            }
            "as" => {
                found.push((path, tokens[at + 1].to_owned()));
                return at + 2;
            }
            "self" if !path.is_empty() => at += 1,
            "," | "}" | ";" => break,
            name => {
                path.push(name.to_owned());
                at += 1;
            }
        }
    }
    let name = path.last().cloned().unwrap_or_default();
    found.push((path, name));
    at
}

/// The names in all `use` items of a file, and the file's other paths.
fn names(tokens: &[&str]) -> (Vec<UsedName>, Vec<Vec<String>>) {
    let (mut used, mut paths, mut at) = (Vec::new(), Vec::new(), 0);
    while at < tokens.len() {
        // `use<'a>` lists the lifetimes of a type.
        if tokens[at] == "use" && tokens.get(at + 1) != Some(&"<") {
            let is_public = at > 0 && ["pub", ")"].contains(&tokens[at - 1]);
            let mut found = Vec::new();
            at = read_use(tokens, at + 1, &[], &mut found);
            let name = |(path, name)| UsedName { path, name, is_public };
            used.extend(found.into_iter().map(name));
            continue;
        }
        let mut path = vec![tokens[at].to_owned()];
        at += 1;
        while tokens.get(at) == Some(&"::") {
            let Some(name) = tokens.get(at + 1).filter(|name| name.starts_with(is_word)) else {
                break;
            };
            path.push((*name).to_owned());
            at += 2;
        }
        if path.len() > 1 {
            paths.push(path);
        }
    }
    (used, paths)
}

impl ModuleTree {
    fn of(sources: impl IntoIterator<Item = SourceFile>) -> Self {
        let read = |SourceFile { module, file, text }| {
            let tokens = tokens(&text);
            let tokens = shipped(&tokens);
            let (used, paths) = names(&tokens);
            (module, ModuleFile { file, defined: defined(&tokens), used, paths })
        };
        Self(sources.into_iter().map(read).collect())
    }

    /// Follows a path from `base` through modules of the same crate. Returns the module, and the
    /// names that are left.
    fn resolve<'p>(
        &self,
        base: &[String],
        path: &'p [String],
    ) -> Option<(ModulePath, &'p [String])> {
        let (mut module, mut path) = (base.to_vec(), path);
        match path.first()?.as_str() {
            "crate" => (module, path) = (base[..1].to_vec(), &path[1..]),
            "self" => path = &path[1..],
            "super" => {
                while path.first().is_some_and(|name| name == "super") {
                    module.pop();
                    path = &path[1..];
                }
            }
            first if self.has(&module, first) => {}
            _ => return None,
        }
        while path.first().is_some_and(|name| self.has(&module, name)) {
            module.push(path[0].clone());
            path = &path[1..];
        }
        Some((module, path))
    }

    fn has(&self, module: &[String], child: &str) -> bool {
        self.0.contains_key(&[module, &[child.to_owned()]].concat())
    }

    /// The module that defines a name of `module`. Re-exports are followed.
    fn definer(
        &self,
        module: &[String],
        name: &str,
        seen: &mut BTreeSet<ModulePath>,
    ) -> Option<ModulePath> {
        let file = self.0.get(module)?;
        if file.defined.contains(name) {
            return Some(module.to_vec());
        }
        if self.has(module, name) {
            return Some([module, &[name.to_owned()]].concat());
        }
        if !seen.insert(module.to_vec()) {
            return None;
        }
        file.used.iter().find_map(|used| {
            let is_all = used.path.last().is_some_and(|last| last == "*");
            if !is_all && used.name != name {
                return None;
            }
            let (target, rest) = self.resolve(module, &used.path)?;
            match rest.first() {
                Some(first) if first == "*" => self.definer(&target, name, seen),
                Some(first) => self.definer(&target, first, seen),
                None => Some(target),
            }
        })
    }

    /// The modules whose items a module uses.
    fn uses(&self, module: &[String]) -> BTreeSet<ModulePath> {
        let file = &self.0[module];
        let mut found = BTreeSet::new();
        let mut local = BTreeMap::new();
        let mut add = |target: &[String], name: &str| {
            if name == "*" {
                found.insert(target.to_vec());
            } else {
                found.extend(self.definer(target, name, &mut BTreeSet::new()));
            }
        };
        for used in &file.used {
            let Some((target, rest)) = self.resolve(module, &used.path) else { continue };
            // A re-export of a child's item is not a use.
            let is_face = used.is_public && target.starts_with(module);
            match rest.first() {
                _ if is_face => {}
                Some(name) => add(&target, name),
                None => {
                    local.insert(&used.name, target);
                }
            }
        }
        for path in &file.paths {
            // A path begins with a local name of a module, or is relative to this module.
            let (base, path) = match local.get(&path[0]) {
                Some(base) => (&base[..], [&["self".to_owned()], &path[1..]].concat()),
                None => (module, path.clone()),
            };
            let resolved = self.resolve(base, &path);
            if let Some((target, [name, ..])) = resolved {
                add(&target, name);
            }
        }
        found.remove(module);
        found
    }
}

/// The modules that a module uses, directly or through other modules.
fn reached<'t>(
    uses: &'t BTreeMap<&ModulePath, BTreeSet<ModulePath>>,
    from: &'t ModulePath,
) -> BTreeSet<&'t ModulePath> {
    let (mut found, mut next) = (BTreeSet::new(), vec![from]);
    while let Some(module) = next.pop() {
        next.extend(uses[module].iter().filter(|used| found.insert(*used)));
    }
    found
}

/// The circles of a tree, with the uses that make each circle.
fn circles(tree: &ModuleTree) -> Vec<(String, String)> {
    let uses: BTreeMap<&ModulePath, _> =
        tree.0.keys().map(|module| (module, tree.uses(module))).collect();
    let reached: BTreeMap<_, _> =
        uses.keys().map(|module| (*module, reached(&uses, module))).collect();
    let mut found = Vec::new();
    let mut placed = BTreeSet::new();
    for (module, below) in &reached {
        let circle: Vec<&ModulePath> =
            below.iter().filter(|other| reached[**other].contains(*module)).copied().collect();
        if circle.is_empty() || !placed.insert(circle[0]) {
            continue;
        }
        let files: Vec<&str> = circle.iter().map(|module| tree.0[*module].file.as_str()).collect();
        let mut arrows = String::new();
        for from in &circle {
            for to in circle.iter().filter(|to| uses[*from].contains(**to)) {
                let (from, to) = (&tree.0[*from].file, &tree.0[*to].file);
                writeln!(arrows, "  {from} uses {to}").expect("a string grows");
            }
        }
        found.push((short(files), arrows));
    }
    found.sort();
    found
}

/// The common folder of some files, and their names from there.
fn short(mut files: Vec<&str>) -> String {
    files.sort_unstable();
    let (first, last) = (files[0], files[files.len() - 1]);
    let same = first.bytes().zip(last.bytes()).take_while(|(a, b)| a == b).count();
    let folder = first[..same].rfind('/').map_or(0, |at| at + 1);
    let names: Vec<_> = files.iter().map(|file| &file[folder..]).collect();
    format!("{}: {}", &first[..folder], names.join(" "))
}

#[test]
fn files_of_a_crate_use_each_other_one_way() {
    let found = circles(&ModuleTree::of(shipped_sources()));
    let mut unknown = String::new();
    for (circle, arrows) in &found {
        if !CIRCLES.contains(&circle.as_str()) {
            writeln!(unknown, "    {circle:?},\n{arrows}").expect("a string grows");
        }
    }
    let is_there = |listed: &&&str| found.iter().any(|(circle, _)| circle == **listed);
    let gone: Vec<_> = CIRCLES.iter().filter(|listed| !is_there(listed)).collect();
    assert!(
        unknown.is_empty() && gone.is_empty(),
        "circles of files that are not in the table:\n{unknown}no longer there: {gone:#?}"
    );
    for listed in CIRCLES {
        let files = listed.split(' ').count() - 1;
        assert!(files <= FILES_MAX, "a circle of {files} files: {listed}");
    }
    assert!(CIRCLES.len() <= CIRCLES_MAX, "{} circles", CIRCLES.len());
}

#[test]
fn circles_are_found_through_re_exports() {
    let tree = ModuleTree::of(
        [
            ("a", "pub use b::One;"),
            ("a b", "use crate::c; pub struct One(c::Two);"),
            ("a c", "pub use e::{Two, f as g}; #[cfg(test)] use super::b::One;"),
            ("a c e", "use crate::One; pub struct Two; pub fn f(_: One) {}"),
            ("a d", "use crate::{b::One, c::Two}; fn h() -> One { Two.into() }"),
        ]
        .map(|(module, text)| SourceFile {
            module: module.split(' ').map(str::to_owned).collect(),
            file: format!("src/{}.rs", module.replace(' ', "/")),
            text: text.to_owned(),
        }),
    );
    let found = circles(&tree);
    let arrows = "  src/a/b.rs uses src/a/c/e.rs\n  src/a/c/e.rs uses src/a/b.rs\n";
    assert_eq!(found, [("src/a/: b.rs c/e.rs".to_owned(), arrows.to_owned())]);
}
