//! The command lines of README.md and of the pages of docs/: each is run on a machine of the page,
//! or there is a reason why it is not run.
//!
//! The reason is in a mark before the block ([`pages`]) or follows from the line's program
//! ([`NOT_RUN`]). Lines of a page are run in their order. The flags of Hark's commands are checked
//! for all lines.

mod machine;
mod pages;
mod shell;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use hark_testkit::program::Program;
use hark_testkit::skipped::skip;

use machine::{Machine, STATES};
use pages::{Block, CommandLine, Mark, Page};

/// Why a line is not run.
const ROOT: &str = "needs root";
const SYSTEM: &str = "changes the system";
const MACHINE: &str = "needs another machine";
const PROGRAM: &str = "needs a program that tests lack";
const DOMAIN: &str = "needs a domain";
const DATABASE: &str = "needs a database";
const MINUTES: &str = "takes minutes";
const VALUE: &str = "has a placeholder that the reader must fill in";
const REASONS: [&str; 8] = [ROOT, SYSTEM, MACHINE, PROGRAM, DOMAIN, DATABASE, MINUTES, VALUE];

/// Beginnings of commands that no test runs, with the reason.
const NOT_RUN: [(&str, &str); 37] = [
    (".", SYSTEM),
    ("apk", SYSTEM),
    ("apt", SYSTEM),
    ("apt-get", SYSTEM),
    ("ask", PROGRAM),
    ("bulkloader", PROGRAM),
    ("cargo", MINUTES),
    ("certbot", DOMAIN),
    ("cloudflared", DOMAIN),
    ("curl --proto", SYSTEM),
    ("deploy/citus/loopback", DATABASE),
    ("docker", PROGRAM),
    ("dpkg-deb", PROGRAM),
    ("git", MACHINE),
    ("install -m 755", SYSTEM),
    ("journalctl", ROOT),
    ("mount", ROOT),
    ("nginx", ROOT),
    ("promtool", PROGRAM),
    ("psql", DATABASE),
    ("rustup", SYSTEM),
    ("rustup-init", SYSTEM),
    ("scp", MACHINE),
    ("scripts/package", MINUTES),
    ("scripts/release", MINUTES),
    ("scripts/test", MINUTES),
    ("sh page.sh", PROGRAM),
    ("ss", ROOT),
    ("ssh", MACHINE),
    ("strfry", PROGRAM),
    ("strip", SYSTEM),
    ("sudo", ROOT),
    ("systemctl", ROOT),
    ("ufw", SYSTEM),
    ("websocat", PROGRAM),
    ("hark bench", MINUTES),
    ("hark cluster", DATABASE),
];

/// Programs whose command lines are run.
const RUN: [&str; 24] = [
    "cat", "cd", "chmod", "cmp", "cp", "curl", "df", "du", "echo", "export", "grep", "hark",
    "install", "kill", "mkdir", "mv", "printf", "rm", "sed", "touch", "ulimit", "umask", "which",
    "zstd",
];

/// Programs that a machine may lack.
const PACKAGES: [&str; 3] = ["curl", "jq", "zstd"];

/// Whether this word at the beginning of a line of a page makes the line a command line.
fn is_program(word: &str) -> bool {
    let mut others = NOT_RUN.iter().filter_map(|(beginning, _)| beginning.split(' ').next());
    RUN.contains(&word) || word.ends_with("/hark") || others.any(|other| other == word)
}

/// The names and the texts of all pages.
fn texts() -> Vec<(String, String)> {
    let tree = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut names = vec!["README.md".to_owned()];
    for folder in ["docs", "docs/internals", "docs/performance"] {
        for entry in fs::read_dir(tree.join(folder)).expect("a directory of ours") {
            let name = entry.expect("an entry").file_name().to_string_lossy().into_owned();
            if Path::new(&name).extension() == Some("md".as_ref()) && name != "SUMMARY.md" {
                names.push(format!("{folder}/{name}"));
            }
        }
    }
    names.sort();
    let read = |name: String| {
        let text = fs::read_to_string(tree.join(&name)).expect("a page of ours");
        (name, text)
    };
    names.into_iter().map(read).collect()
}

/// The entry of [`NOT_RUN`] that matches a command of this line.
fn beginning_of(text: &str) -> Option<(&'static str, &'static str)> {
    let is_of = |words: &[String], beginning: &str| {
        let words = shell::program(words);
        let of_hark = shell::arguments_of_hark(words).and_then(shell::command_of_hark);
        let of_hark = of_hark.map(|(command, _)| format!("hark {command}"));
        let text = of_hark.unwrap_or_else(|| words.join(" "));
        // A line with sudo is not run, no matter which program sudo would run.
        let text = if words.first().is_some_and(|word| word == "sudo") { "sudo" } else { &text };
        text.strip_prefix(beginning).is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
    };
    shell::commands(text)
        .iter()
        .find_map(|words| NOT_RUN.into_iter().find(|(beginning, _)| is_of(words, beginning)))
}

/// Returns why a line is not run.
fn reason(page: &Page, block: &Block, command: &CommandLine) -> Option<String> {
    let of_mark = block.marks.iter().find_map(|mark| match mark {
        Mark::NotRun { reason, .. } if mark.is_for(command) => Some(reason.clone()),
        _ => None,
    });
    let of_program = || beginning_of(&command.text).map(|(_, reason)| reason.to_owned());
    let words = || shell::commands(&command.text);
    let is_of_database = || {
        let is_migration = |words: Vec<String>| {
            let of_hark = shell::arguments_of_hark(&words).and_then(shell::command_of_hark);
            of_hark.is_some_and(|(command, _)| command == "migrate")
        };
        command.text.contains("postgres://")
            || command.text.contains("--store")
            || words().into_iter().any(is_migration)
    };
    let missing = || {
        let is_there = |name: &str| {
            let path = std::env::var_os("PATH").unwrap_or_default();
            std::env::split_paths(&path).any(|folder| folder.join(name).is_file())
        };
        let names = words().into_iter().filter_map(|words| words.into_iter().next());
        names.into_iter().find(|name| PACKAGES.contains(&name.as_str()) && !is_there(name))
    };
    of_mark
        .or_else(|| page.not_run.clone())
        .or_else(of_program)
        .or_else(|| is_of_database().then(|| DATABASE.to_owned()))
        .or_else(|| missing().map(|name| format!("{name} is missing here")))
}

/// The results of all pages.
#[derive(Default)]
struct Results {
    run: usize,
    /// Lines that were not run, by reason.
    not_run: BTreeMap<String, usize>,
    faults: Vec<String>,
}

/// A line without its figures, which differ between runs.
fn masked(line: &str) -> String {
    let mut masked = String::new();
    for c in line.trim().chars() {
        let is_digit = c.is_ascii_digit();
        let is_in_number = masked.ends_with('#') && (is_digit || ".,:-".contains(c));
        if !is_in_number {
            masked.push(if is_digit { '#' } else { c });
        }
    }
    masked
}

/// Returns the first shown line that the output lacks. Lines are compared up to their first column
/// of values. A shown line of dots stands for further output.
fn missing_line<'a>(shown: &'a [String], output: &str) -> Option<&'a String> {
    let lines: Vec<String> = output.lines().map(masked).collect();
    shown.iter().find(|line| {
        let is_cut = line.contains("...") || line.contains('…');
        let label = masked(line.split("  ").next().unwrap_or_default());
        !is_cut && !lines.iter().any(|line| line.starts_with(&label))
    })
}

impl Results {
    fn check(&mut self, place: &str, result: Result<(), String>) {
        self.faults.extend(result.err().map(|fault| format!("{place}: {fault}")));
    }

    /// Runs a line, and compares its exit code and its output with the page.
    fn run(&mut self, place: &str, machine: &mut Machine, block: &Block, command: &CommandLine) {
        self.run += 1;
        let marked = block.marks.iter().find_map(|mark| match mark {
            Mark::Exit { code, .. } if mark.is_for(command) => Some(*code),
            _ => None,
        });
        let ended = match machine.run_line(command) {
            Ok(ended) => ended,
            Err(fault) => {
                return self.faults.push(format!("{place}: `{}`: {fault}", command.text));
            }
        };
        // `hark doctor` may fail because of the machine that runs the test, which is no fault of
        // the page.
        let is_verdict = ended.code == 1 && command.text.contains(" doctor");
        if ended.code != marked.unwrap_or(0) && !is_verdict {
            let (text, code, output) = (&command.text, ended.code, &ended.output);
            return self.faults.push(format!("{place}: `{text}` ends with {code}: {output}"));
        }
        if block.marks.contains(&Mark::NotCompared) {
            return;
        }
        let shown: Vec<_> = command.shown.iter().map(|line| machine.real(line)).collect();
        if let Some(line) = missing_line(&shown, &ended.output) {
            let (text, output) = (&command.text, &ended.output);
            self.faults.push(format!("{place}: `{text}` does not print `{line}` but: {output}"));
        }
    }

    fn run_page(&mut self, name: &str, page: &Page) {
        let mut machine = None;
        for block in &page.blocks {
            let states = block.marks.iter().filter_map(|mark| match mark {
                Mark::Given(state) => Some(state),
                _ => None,
            });
            for state in states.filter(|_| page.not_run.is_none()) {
                let earlier = machine.take().map_or(Ok(()), Machine::end);
                self.check(name, earlier);
                let begun = machine.insert(Machine::new()).begin(state);
                self.check(name, begun);
            }
            for command in &block.commands {
                let place = format!("{name}:{}", command.line);
                let reason = reason(page, block, command);
                if page.not_run.is_none() && (reason.is_none() || machine.is_some()) {
                    let machine = machine.get_or_insert_with(Machine::new);
                    if reason.is_none() {
                        self.run(&place, machine, block, command);
                    } else {
                        let followed = machine.follow_systemd(&command.text);
                        self.check(&place, followed);
                    }
                }
                if let Some(reason) = reason {
                    *self.not_run.entry(reason).or_default() += 1;
                }
            }
        }
        let ended = machine.map_or(Ok(()), Machine::end);
        self.check(name, ended);
    }
}

#[test]
fn command_lines_of_the_book_are_run_or_have_a_reason() {
    let mut results = Results::default();
    for (name, text) in texts() {
        let page = Page::parse(&text, is_program);
        results.run_page(&name, &page);
    }
    println!("{} command lines of the book were run", results.run);
    for (reason, count) in &results.not_run {
        println!("{count} were not run: {reason}");
        if reason.ends_with("is missing here") {
            skip(format!("{count} command lines of the book: {reason}"));
        }
    }
    assert!(results.run > 100, "only {} lines were run", results.run);
    assert!(results.faults.is_empty(), "{}", results.faults.join("\n"));
}

#[test]
fn every_block_of_the_book_has_a_language_and_every_mark_a_block() {
    let (mut faults, mut unused) = (Vec::new(), BTreeSet::from(NOT_RUN.map(|(row, _)| row)));
    for (name, text) in texts() {
        let page = Page::parse(&text, is_program);
        faults.extend(page.faults.iter().map(|fault| format!("{name}:{fault}")));
        let mut reasons: Vec<&String> = page.not_run.iter().collect();
        for block in &page.blocks {
            for mark in &block.marks {
                match mark {
                    Mark::NotRun { reason, .. } => reasons.push(reason),
                    Mark::Given(state) if !STATES.contains(&state.as_str()) => {
                        faults.push(format!("{name}: no state {state}"));
                    }
                    _ => {}
                }
            }
            for command in &block.commands {
                if let Some((row, _)) = beginning_of(&command.text) {
                    unused.remove(row);
                }
            }
        }
        let wrong = reasons.into_iter().filter(|reason| !REASONS.contains(&reason.as_str()));
        faults.extend(wrong.map(|reason| format!("{name}: no reason {reason}")));
        for (line, script) in &page.scripts {
            let checked = Program::new("sh").arg("-n").run_with(script.as_bytes());
            if checked.code != 0 {
                faults.push(format!("{name}:{line}: {}", checked.stderr));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert!(unused.is_empty(), "no page has {unused:?}: shorten the table");
}

/// Placeholders of the pages for values of flags, each with a value that the flags accept.
const PLACEHOLDERS: [(&str, &str); 6] = [
    ("N", "1"),
    ("NAME", "nostr"),
    ("URL", "ws://relay.example"),
    ("URL…", "ws://relay.example"),
    ("ws://...", "ws://relay.example"),
    ("/ip4/...", "/ip4/127.0.0.1/tcp/60000"),
];

/// The command lines of a page: those of its blocks, of its text, and of the examples in help
/// texts.
fn all_lines(text: &str) -> Vec<String> {
    let page = Page::parse(text, is_program);
    let blocks = page.blocks.into_iter().flat_map(|block| block.commands);
    let mut found: Vec<String> = blocks.map(|command| command.text).collect();
    let mut is_example = false;
    for line in text.lines() {
        let spans = line.split('`').skip(1).step_by(2);
        found.extend(spans.filter(|span| span.starts_with("hark ")).map(str::to_owned));
        let titles = ["Examples:", "On a fresh machine:", "From nothing to a comparison:"];
        is_example = titles.contains(&line) || (is_example && line.starts_with("  "));
        if is_example && line.starts_with("  ") {
            found.push(shell::code_of_example(line.trim()).to_owned());
        }
    }
    found
}

#[test]
fn hark_knows_the_flags_of_every_command_line_of_the_book() {
    let mut checked = BTreeSet::new();
    for (name, text) in texts() {
        for words in all_lines(&text).iter().flat_map(|line| shell::commands(line)) {
            let Some(arguments) = shell::arguments_of_hark(&words) else { continue };
            let stands_for_more = |word: &String| word == "COMMAND" || word.starts_with('[');
            let is_help = arguments.first().is_some_and(|first| first == "help");
            if is_help || arguments.is_empty() || arguments.iter().any(stands_for_more) {
                continue;
            }
            let filled = |word: &String| {
                let filled = PLACEHOLDERS.iter().find(|(placeholder, _)| placeholder == word);
                filled.map_or_else(|| word.clone(), |(_, value)| (*value).to_owned())
            };
            let arguments: Vec<String> = arguments.iter().map(filled).collect();
            if !checked.insert(arguments.clone()) {
                continue;
            }
            // Because of --help at the end, Hark only parses the arguments and runs nothing.
            let mut program = Program::new(env!("CARGO_BIN_EXE_hark"));
            let ended = program.args(&arguments).arg("--help").run_with(b"");
            // The text of a page may mention a flag without its value, e.g. `hark serve --listen`.
            let is_name = ended.stderr.contains("a value is required");
            let line = arguments.join(" ");
            assert!(ended.code == 0 || is_name, "{name}: hark {line}: {}", ended.stderr);
        }
    }
    assert!(checked.len() > 200, "only {} command lines were found", checked.len());
}

#[test]
fn figures_of_shown_output_are_not_compared() {
    assert_eq!(masked("  events   3,988  2026-11-27 07:22"), "events   #  # #");
    let shown = ["events   12".to_owned(), "...".to_owned(), "12 rows".to_owned()];
    assert_eq!(missing_line(&shown, "a\n  events  3\n7 rows"), None);
    assert_eq!(missing_line(&shown, "events  3\nseven rows"), Some(&shown[2]));
}
