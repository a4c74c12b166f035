//! Command lines as a shell reads them: commands and comments, simple commands, words.

/// Returns a line without its comment. ` #` outside of quotes begins a comment. `quote` is the
/// quote that is open at the beginning of the line; on return, the quote that is open at the end.
pub(super) fn code<'a>(line: &'a str, quote: &mut Option<char>) -> &'a str {
    code_before(line, quote, |spaces, c| c == '#' && spaces > 0)
}

/// Returns the command of an example in a help text, without the explanation that follows two
/// spaces or ` #`.
pub(super) fn code_of_example(line: &str) -> &str {
    code_before(line, &mut None, |spaces, c| (c == ' ' && spaces == 1) || (c == '#' && spaces > 0))
}

/// Returns the beginning of a line, up to the first character outside of quotes for which `is_end`
/// returns true. `is_end` gets the number of spaces before the character, and the character.
fn code_before<'a>(
    line: &'a str,
    quote: &mut Option<char>,
    is_end: impl Fn(usize, char) -> bool,
) -> &'a str {
    let indent = line.len() - line.trim_start().len();
    let (mut spaces, mut is_escaped) = (0, false);
    for (at, c) in line.char_indices().skip_while(|(at, _)| *at < indent) {
        let is_quote = (c == '"' && !is_escaped) || c == '\'';
        match *quote {
            Some(open) if is_quote && c == open => *quote = None,
            None if is_end(spaces, c) => return line[..at].trim_end(),
            None if is_quote && !is_escaped => *quote = Some(c),
            Some(_) | None => {}
        }
        spaces = if c == ' ' && quote.is_none() { spaces + 1 } else { 0 };
        is_escaped = c == '\\' && !is_escaped && *quote != Some('\'');
    }
    line.trim_end()
}

/// Returns the simple commands of a command line, each as a list of words without quotes.
/// Redirections are left out, and a value that only a shell can determine is replaced by 1.
pub(super) fn commands(text: &str) -> Vec<Vec<String>> {
    let (mut found, mut word, mut is_target) = (vec![Vec::new()], None::<String>, false);
    let mut chars = text.chars().peekable();
    loop {
        let next = chars.next();
        let ends = next.is_none_or(|c| c.is_whitespace() || "|&;()<>".contains(c));
        if ends && let Some(ended) = word.take() {
            // A number before a redirection is its descriptor.
            let is_number = ended.bytes().all(|digit| digit.is_ascii_digit());
            let is_descriptor = matches!(next, Some('<' | '>')) && is_number;
            if !is_target && !is_descriptor {
                found.last_mut().expect("one at least").push(ended);
            }
            is_target = false;
        }
        match next {
            None => break,
            Some('\'') => {
                let inner: String = chars.by_ref().take_while(|c| *c != '\'').collect();
                word.get_or_insert_default().push_str(&inner);
            }
            Some('"') => {
                let word = word.get_or_insert_default();
                while let Some(c) = chars.next().filter(|c| *c != '"') {
                    word.extend(if c == '\\' { chars.next() } else { Some(c) });
                }
            }
            Some('\\') => word = joined(word, chars.next().filter(|c| *c != '\n')),
            Some('$') => {
                if chars.next_if_eq(&'(').is_some() {
                    let mut depth = 1;
                    while depth > 0 {
                        match chars.next() {
                            Some('(') => depth += 1,
                            Some(')') => depth -= 1,
                            Some(_) => {}
                            None => depth = 0,
                        }
                    }
                } else {
                    while chars.next_if(|c| c.is_alphanumeric() || "_!?".contains(*c)).is_some() {}
                }
                word.get_or_insert_default().push('1');
            }
            Some('#') if word.is_none() => while chars.next_if(|c| *c != '\n').is_some() {},
            Some('<' | '>') => {
                while chars.next_if(|c| "<>&".contains(*c)).is_some() {}
                is_target = true;
            }
            Some('|' | '&' | ';' | '(' | ')' | '\n') => found.push(Vec::new()),
            Some(c) if c.is_whitespace() => {}
            Some(c) => word.get_or_insert_default().push(c),
        }
    }
    found.retain(|words| !words.is_empty());
    found
}

/// Adds an escaped character to a word.
fn joined(word: Option<String>, escaped: Option<char>) -> Option<String> {
    let Some(escaped) = escaped else { return word };
    let mut word = word.unwrap_or_default();
    word.push(escaped);
    Some(word)
}

/// Whether a word sets a variable.
pub(super) fn is_assignment(word: &str) -> bool {
    let is_name = |name: &str| {
        name.starts_with(|c: char| c.is_ascii_alphabetic())
            && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    };
    word.split_once('=').is_some_and(|(name, _)| is_name(name))
}

/// Returns the program of a simple command, and its arguments.
pub(super) fn program(words: &[String]) -> &[String] {
    let at = words.iter().position(|word| !is_assignment(word)).unwrap_or(words.len());
    &words[at..]
}

/// Returns the arguments of Hark if a simple command runs Hark, directly, with sudo, or by a path.
pub(super) fn arguments_of_hark(words: &[String]) -> Option<&[String]> {
    let words = program(words);
    let words = if words.first()? == "sudo" { program(&words[1..]) } else { words };
    let (program, arguments) = words.split_first()?;
    (program == "hark" || program.ends_with("/hark")).then_some(arguments)
}

/// Returns the command of Hark, such as `query`, and the words after the command.
pub(super) fn command_of_hark(arguments: &[String]) -> Option<(&str, &[String])> {
    let mut rest = arguments;
    while let [first, after @ ..] = rest {
        match first.as_str() {
            "--data" | "--store" | "--network" | "--config" => rest = after.get(1..)?,
            flag if flag.starts_with('-') => rest = after,
            command => return Some((command, after)),
        }
    }
    None
}

#[test]
fn comments_end_the_code_of_a_line() {
    for (line, expected) in [
        ("hark stats                  # size", "hark stats"),
        ("hark query '{\"a\":  1}'  # the newest", "hark query '{\"a\":  1}'"),
        ("echo 'npub1  # carol' >> new   # adds", "echo 'npub1  # carol' >> new"),
        ("rm -r old      when it is done", "rm -r old      when it is done"),
        ("curl x | jq .a # the limits", "curl x | jq .a"),
        ("    awk '{print $1}' | head", "    awk '{print $1}' | head"),
    ] {
        assert_eq!(code(line, &mut None), expected);
    }
    let mut quote = None;
    assert_eq!(code("hark query '{\"a\":1,", &mut quote), "hark query '{\"a\":1,");
    assert_eq!(quote, Some('\''));
    assert_eq!(code("    \"b\":2}'   # both", &mut quote), "    \"b\":2}'");
    assert_eq!(quote, None);
    assert_eq!(code_of_example("hark stats    size"), "hark stats");
    assert_eq!(code_of_example("hark query '{\"a\":  1}'  # all"), "hark query '{\"a\":  1}'");
}

#[test]
fn command_lines_consist_of_simple_commands() {
    for (line, expected) in [
        ("hark export | strfry import", "hark export; strfry import"),
        ("A=1 hark serve --log-level 'a b' 2>> log && x", "A=1 hark serve --log-level a b; x"),
        ("hark bench ingest f --pid $(pgrep -x hark)", "hark bench ingest f --pid 1"),
        ("hark query \"{\\\"since\\\":1}\" > out 2>&1 &", "hark query {\"since\":1}"),
        ("(echo a; sleep 1) | cat -", "echo a; sleep 1; cat -"),
        ("hark bench query f --pid $! --runs 5 # five", "hark bench query f --pid 1 --runs 5"),
        ("curl -d x \\\n  http://h", "curl -d x http://h"),
    ] {
        let found: Vec<_> = commands(line).iter().map(|words| words.join(" ")).collect();
        assert_eq!(found.join("; "), expected, "{line}");
    }
    let of_hark = |line: &str| {
        let words = commands(line).remove(0);
        let arguments = arguments_of_hark(&words)?;
        command_of_hark(arguments).map(|(command, _)| command.to_owned())
    };
    assert_eq!(of_hark("A=1 sudo /opt/old/hark --data d stats").as_deref(), Some("stats"));
    assert_eq!(of_hark("hark --version"), None);
    assert_eq!(of_hark("docker exec hark hark stats"), None);
}
