//! Compares the generated pages docs/settings.md and docs/commands.md with the program.

use std::fmt::Write as _;

use hark_testkit::manual::{commands, compare};

use crate::cli;
use crate::config::{Config, settings};
use crate::print::number;

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
    compare("settings.md", &made);
}

#[test]
fn the_page_of_commands_is_made_from_the_help() {
    compare("commands.md", &commands(cli::command(), "hark"));
}
