//! The pages of the book: their blocks of code, and the marks before the blocks.
//!
//! An indented block has command lines, or text that a mark names. In a command line, ` #` begins an
//! explanation, so that a reader can copy the whole line. A fenced block names its language. A mark is
//! an HTML comment on a line of its own, which readers do not see:
//!
//! | mark | effect |
//! |---|---|
//! | `given: STATE` | the machine gets this state before the block |
//! | `not run: REASON` | no line of the block is run |
//! | `not run: REASON: BEGINNING` | the lines with this beginning are not run |
//! | `exit CODE: BEGINNING` | the lines with this beginning end with this code |
//! | `not compared` | the shown output is of another archive |
//! | `text` | the block has no command lines |
//! | `page not run: REASON` | no line of the page is run |
//! | `page text` | blocks of the page that do not begin with a program are text |

use super::shell;

/// The comment after which a page is generated from the program.
const MADE: &str = "The rest of this page is made from the program, and a test compares it.";

/// A comment of a page that tells the test how to treat a block; see the table above.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Mark {
    Given(String),
    /// An empty beginning stands for the whole block.
    NotRun {
        reason: String,
        beginning: String,
    },
    Exit {
        code: i32,
        beginning: String,
    },
    NotCompared,
    Text,
    PageNotRun(String),
    PageText,
}

/// A command line, which may span several lines of the page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CommandLine {
    /// The number of the line in the page.
    pub(super) line: usize,
    /// The code, without a comment.
    pub(super) text: String,
    /// The output that the page shows below the command line.
    pub(super) shown: Vec<String>,
}

/// A block with command lines.
#[derive(Debug)]
pub(super) struct Block {
    pub(super) marks: Vec<Mark>,
    pub(super) commands: Vec<CommandLine>,
}

/// A page of the book.
#[derive(Debug, Default)]
pub(super) struct Page {
    pub(super) blocks: Vec<Block>,
    /// Shell scripts, with the numbers of their lines.
    pub(super) scripts: Vec<(usize, String)>,
    /// The reason for which no line of the page is run.
    pub(super) not_run: Option<String>,
    /// Wrong marks, and blocks without a language.
    pub(super) faults: Vec<String>,
}

/// An indented block: the number of its first line, and its lines.
type Indented = (usize, Vec<String>);

impl Mark {
    fn parse(comment: &str) -> Option<Self> {
        let rest = |name: &str| comment.strip_prefix(name).map(str::to_owned);
        if let Some(state) = rest("given: ") {
            return Some(Self::Given(state));
        }
        if let Some(of_block) = rest("not run: ") {
            let (reason, beginning) = of_block.split_once(": ").unwrap_or((&of_block, ""));
            return Some(Self::NotRun { reason: reason.into(), beginning: beginning.into() });
        }
        if let Some(exit) = rest("exit ") {
            let (code, beginning) = exit.split_once(": ")?;
            return Some(Self::Exit { code: code.parse().ok()?, beginning: beginning.into() });
        }
        if let Some(reason) = rest("page not run: ") {
            return Some(Self::PageNotRun(reason));
        }
        match comment {
            "not compared" => Some(Self::NotCompared),
            "text" => Some(Self::Text),
            "page text" => Some(Self::PageText),
            _ => None,
        }
    }

    /// The beginning of the lines that the mark is for.
    fn beginning(&self) -> Option<&str> {
        match self {
            Self::NotRun { beginning, .. } | Self::Exit { beginning, .. } => Some(beginning),
            _ => None,
        }
    }

    /// Whether the mark is for this command line.
    pub(super) fn is_for(&self, command: &CommandLine) -> bool {
        self.beginning().is_none_or(|beginning| command.text.starts_with(beginning))
    }
}

impl Page {
    /// Reads a page. `is_program` decides whether a word at the beginning of a line is a program.
    pub(super) fn parse(text: &str, is_program: impl Fn(&str) -> bool) -> Self {
        let mut page = Self::default();
        let (mut marks, mut texts) = (Vec::new(), Vec::new());
        let mut is_all_text = false;
        let mut lines = text.lines().enumerate().map(|(at, line)| (at + 1, line)).peekable();
        let mut is_after_blank = true;
        while let Some((at, line)) = lines.next() {
            let trimmed = line.trim();
            if is_after_blank && line.starts_with("    ") {
                let mut block = (at, vec![line.to_owned()]);
                let is_inner = |line: &str| line.starts_with("    ") || line.trim().is_empty();
                while let Some((_, line)) = lines.next_if(|(_, line)| is_inner(line)) {
                    block.1.push(line.to_owned());
                }
                let marks = std::mem::take(&mut marks);
                match page.block(&block, marks, &is_program) {
                    Some(marked) => page.blocks.push(marked),
                    None => texts.push(at),
                }
            } else if let Some(language) = trimmed.strip_prefix("```") {
                page.fenced(at, language, &mut lines);
                // A fenced block has a language instead of marks.
                page.without_block(at, &mut marks);
            } else if let Some(comment) = trimmed.strip_prefix("<!-- ") {
                let comment = comment.strip_suffix(" -->").unwrap_or_default();
                match Mark::parse(comment) {
                    Some(Mark::PageNotRun(reason)) => page.not_run = Some(reason),
                    Some(Mark::PageText) => is_all_text = true,
                    Some(mark) => marks.push(mark),
                    None if comment == MADE => {}
                    None => page.faults.push(format!("{at}: no mark: {trimmed}")),
                }
                is_after_blank = false;
                continue;
            } else if !trimmed.is_empty() {
                page.without_block(at, &mut marks);
            }
            // The empty lines after a block belong to the block.
            is_after_blank = trimmed.is_empty() || line.starts_with("    ");
        }
        page.without_block(text.lines().count(), &mut marks);
        if !is_all_text {
            let fault = |at| format!("{at}: a block of no known program; mark the block as text");
            page.faults.extend(texts.into_iter().map(fault));
        }
        page
    }

    /// Reports marks that no block follows.
    fn without_block(&mut self, at: usize, marks: &mut Vec<Mark>) {
        let faults = marks.drain(..).map(|mark| format!("{at}: no block follows {mark:?}"));
        self.faults.extend(faults);
    }

    /// Reads a fenced block up to its end.
    fn fenced<'a>(
        &mut self,
        at: usize,
        language: &str,
        lines: &mut impl Iterator<Item = (usize, &'a str)>,
    ) {
        let inner = lines.take_while(|(_, line)| !line.trim().starts_with("```"));
        let text: String = inner.flat_map(|(_, line)| [line, "\n"]).collect();
        match language {
            "" => self.faults.push(format!("{at}: a block without a language")),
            "sh" => self.scripts.push((at, text)),
            _ => {}
        }
    }

    /// Reads an indented block. `None` if the block has no command lines and no mark for text.
    fn block(
        &mut self,
        (at, lines): &Indented,
        marks: Vec<Mark>,
        is_program: impl Fn(&str) -> bool,
    ) -> Option<Block> {
        if marks.contains(&Mark::Text) {
            if marks.len() > 1 {
                self.faults.push(format!("{at}: a block of text has no other mark"));
            }
            return Some(Block { marks, commands: Vec::new() });
        }
        let commands = command_lines(*at, lines, is_program);
        if commands.is_empty() {
            self.without_block(*at, &mut marks.clone());
            return None;
        }
        for command in commands.iter().filter(|command| has_gap(&command.text)) {
            self.faults.push(format!("{}: write ` #` before the explanation", command.line));
        }
        for mark in &marks {
            if !commands.iter().any(|command| mark.is_for(command)) {
                self.faults.push(format!("{at}: no line of the block is for {mark:?}"));
            }
        }
        Some(Block { marks, commands })
    }
}

/// Whether a command line has two spaces outside of quotes, as before an explanation without ` #`.
fn has_gap(text: &str) -> bool {
    let mut quote = None;
    text.lines().any(|line| {
        let is_quoted = quote.is_some();
        let code = shell::code(line, &mut quote);
        !is_quoted && code != shell::code_of_example(line)
    })
}

/// The command lines of a block. If the first line begins with `$`, all command lines begin with
/// `$`, and all other lines are output. If the first line begins without `$`, the command lines end
/// at an empty line, unless the line after it begins with the name of a program or an assignment.
/// The result is empty for a block of another kind.
fn command_lines(
    at: usize,
    lines: &[String],
    is_program: impl Fn(&str) -> bool,
) -> Vec<CommandLine> {
    let begins = |line: &str| {
        let words = shell::commands(line);
        words.first().is_some_and(|words| shell::is_assignment(&words[0]) || is_program(&words[0]))
    };
    let has_prompt = lines[0].trim().starts_with("$ ");
    let mut found: Vec<CommandLine> = Vec::new();
    let (mut quote, mut is_open, mut is_output, mut is_after_blank) = (None, false, false, true);
    for (line, text) in (at..).zip(lines) {
        let trimmed = text.trim();
        if trimmed.is_empty() {
            is_after_blank = true;
            continue;
        }
        if has_prompt {
            is_output = !trimmed.starts_with("$ ");
        } else if is_after_blank {
            is_output = !begins(trimmed);
        }
        is_after_blank = false;
        match found.last_mut() {
            None if is_output => return Vec::new(),
            Some(last) if is_output => last.shown.push(trimmed.to_owned()),
            Some(last) if is_open => {
                last.text.push('\n');
                last.text.push_str(shell::code(text, &mut quote));
            }
            _ => {
                let code = shell::code(trimmed.trim_start_matches("$ "), &mut quote);
                found.push(CommandLine { line, text: code.to_owned(), shown: Vec::new() });
            }
        }
        let code = found.last().map(|last| last.text.as_str()).unwrap_or_default();
        let is_continued = quote.is_some() || code.ends_with(['\\', '|']) || code.ends_with("&&");
        is_open = is_continued && !is_output;
    }
    found
}

#[test]
fn blocks_marks_and_faults_of_a_page_are_found() {
    let text = "\
Text.

    hark stats          # size
    hark export |
        jq .id

    12 rows  shown

<!-- not run: needs root: mount -->
<!-- exit 1: hark check -->

    mount x
    hark check

<!-- text -->

    [\"EOSE\"]

```sh
echo
```
";
    let is_program = |word: &str| ["hark", "mount"].contains(&word);
    let page = Page::parse(text, is_program);
    assert_eq!(page.faults, Vec::<String>::new());
    assert_eq!(page.scripts, [(19, "echo\n".to_owned())]);
    let found: Vec<_> = page.blocks.iter().flat_map(|block| &block.commands).collect();
    let texts: Vec<_> = found.iter().map(|command| (command.line, command.text.as_str())).collect();
    let expected = [
        (3, "hark stats"),
        (4, "hark export |\n        jq .id"),
        (12, "mount x"),
        (13, "hark check"),
    ];
    assert_eq!(texts, expected);
    assert_eq!(found[1].shown, ["12 rows  shown"]);
    let marks = &page.blocks[1].marks;
    let reasons: Vec<_> = marks.iter().map(|mark| mark.is_for(found[2])).collect();
    assert_eq!(reasons, [true, false]);
    let page = Page::parse("\n    $ hark stats\n    events 3\n", is_program);
    assert_eq!(page.blocks[0].commands[0].shown, ["events 3"]);
    for (text, fault) in [
        ("```\nx\n```\n", "without a language"),
        ("\n    [\"EOSE\"]\n", "no known program"),
        ("<!-- not run: needs root -->\n\nText.\n", "no block follows"),
        ("<!-- not run: needs root: mount -->\n\n    hark stats\n", "no line of the block"),
        ("<!-- not rum: needs root -->\n\n    hark stats\n", "no mark"),
        ("\n    hark stats      size\n", "before the explanation"),
    ] {
        let faults = Page::parse(text, is_program).faults;
        assert!(faults.len() == 1 && faults[0].contains(fault), "{text}: {faults:?}");
    }
}
