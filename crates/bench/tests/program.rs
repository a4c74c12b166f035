//! The program `hark-bench` prints the help of `hark bench`.

use clap::CommandFactory as _;
use hark_testkit::manual::{commands, compare};
use hark_testkit::program::Program;

#[test]
fn its_help_is_that_of_hark_bench() {
    let help = Program::new(env!("CARGO_BIN_EXE_hark-bench")).args(["--help"]).output();
    let help = help.expect("runs");
    let text = String::from_utf8_lossy(&help.stdout);
    assert!(help.status.success() && text.contains("Usage: hark bench <COMMAND>"), "{text}");
    let wrong = Program::new(env!("CARGO_BIN_EXE_hark-bench")).args(["none"]).output();
    assert_eq!(wrong.expect("runs").status.code(), Some(2));
}

#[test]
fn the_page_of_its_commands_is_made_from_the_help() {
    let command = hark::reflowed(hark_bench::BenchArgs::command());
    compare("bench-commands.md", &commands(command, "hark bench"));
}
