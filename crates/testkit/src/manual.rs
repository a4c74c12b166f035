//! Compares pages of the manual with the program from which they are generated. A page begins with
//! text that is written by hand, up to `MARK`.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

/// The text with which the generated part of a page begins.
const MARK: &str =
    "<!-- The rest of this page is made from the program, and a test compares it. -->";

/// Compares a page of `docs/` with the text that the program generates. If they differ, writes the
/// correct page to a file, which can be copied over the page.
#[track_caller]
pub fn compare(name: &str, made: &str) {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(name);
    let page = fs::read_to_string(page).expect("the page is read");
    let (head, _) = page.split_once(MARK).expect("the page has the mark");
    let right = format!("{head}{MARK}\n\n{}\n", made.trim_end());
    if page != right {
        let path = std::env::temp_dir().join(name);
        fs::write(&path, right).expect("is written");
        panic!("{name} differs from the program; the correct page is in {}", path.display());
    }
}

/// Returns the help of a command and of all its subcommands. `name` is the name under which the
/// command is run.
pub fn commands(command: clap::Command, name: &str) -> String {
    let (mut made, mut command) = (String::new(), command.term_width(100));
    command.build();
    describe(&mut command, name, true, &mut made);
    made
}

fn describe(command: &mut clap::Command, name: &str, is_first: bool, made: &mut String) {
    let name = command.get_bin_name().unwrap_or(name).to_owned();
    // Flags that all commands share are described only for the first command.
    let mut alone = command.clone().mut_args(|arg| {
        let is_hidden = arg.is_hide_set() || (arg.is_global_set() && !is_first);
        arg.hide_env_values(true).hide(is_hidden)
    });
    let help = alone.render_long_help().to_string();
    let lines: Vec<&str> = help.trim_end().lines().map(str::trim_end).collect();
    write!(made, "## {name}\n\n```text\n{}\n```\n\n", lines.join("\n")).expect("a string grows");
    for below in command.get_subcommands_mut() {
        if !below.is_hide_set() && below.get_name() != "help" {
            describe(below, &name, false, made);
        }
    }
}
