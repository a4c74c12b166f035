//! The pages of the manual that are made from the program: docs/settings.md and docs/commands.md.
//! A page begins with text of its own, up to [`MARK`].

use std::fmt::Write as _;
use std::path::Path;

use crate::cli;
use crate::config::{Config, settings};
use crate::print::number;

/// Begins the part of a page that is made from the program.
const MARK: &str =
    "<!-- The rest of this page is made from the program. src/manual.rs compares it. -->";

/// Compares a page with the program. If they differ, writes the right page to a file that can be
/// copied over the page.
fn compare(name: &str, page: &str, made: &str) {
    let (head, _) = page.split_once(MARK).expect("the page has the mark");
    let right = format!("{head}{MARK}\n\n{}\n", made.trim_end());
    if page != right {
        let path = std::env::temp_dir().join(Path::new(name).file_name().expect("a name"));
        std::fs::write(&path, right).expect("is written");
        panic!("{name} differs from the program; as it should be, it is in {}", path.display());
    }
}

#[test]
fn the_page_of_settings_is_made_from_the_table_of_settings() {
    let (mut made, config) = (String::new(), Config::default());
    for section in settings::SECTIONS {
        let doc = section.doc.replace("\n#", "");
        writeln!(made, "## [{}]\n\n{doc}\n", section.name).unwrap();
        for setting in section.settings {
            let live = if setting.is_live { ", live" } else { "" };
            let range = setting
                .bounds
                .map(|(least, most)| format!("; from {} to {}", number(least), number(most)));
            let (key, value) = (setting.key, (setting.show)(&config));
            let doc = setting.doc.replace('\n', " ").replace('<', "\\<");
            let range = range.unwrap_or_default();
            writeln!(made, "- **`{key}`** (default `{value}`{range}{live}): {doc}").unwrap();
        }
        made.push('\n');
    }
    compare("docs/settings.md", include_str!("../docs/settings.md"), &made);
}

#[test]
fn the_page_of_commands_is_made_from_the_help() {
    fn describe(command: &mut clap::Command, made: &mut String) {
        let name = command.get_bin_name().unwrap_or("hark").to_owned();
        // The flags of all commands are described once, with `hark` itself.
        let is_first = !name.contains(' ');
        let mut alone = command.clone().mut_args(|arg| {
            let is_hidden = arg.is_hide_set() || (arg.is_global_set() && !is_first);
            arg.hide_env_values(true).hide(is_hidden)
        });
        let help = alone.render_long_help().to_string();
        let lines: Vec<&str> = help.trim_end().lines().map(str::trim_end).collect();
        write!(made, "## {name}\n\n```text\n{}\n```\n\n", lines.join("\n")).unwrap();
        for sub in command.get_subcommands_mut() {
            if !sub.is_hide_set() && sub.get_name() != "help" {
                describe(sub, made);
            }
        }
    }
    let (mut made, mut command) = (String::new(), cli::command().term_width(100));
    command.build();
    describe(&mut command, &mut made);
    compare("docs/commands.md", include_str!("../docs/commands.md"), &made);
}
