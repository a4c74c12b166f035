//! Code that the programs of Hark share: the limit of open files, help, errors and exit codes.

use std::path::PathBuf;
use std::process::ExitCode;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::config::Faults;
use crate::question::FilterFault;
use crate::wrong_use::WrongUse;
use crate::{log, print};

/// The version of the program, with the commit of the build and its date if known.
pub const VERSION: &str = env!("HARK_VERSION");

/// Exit code for wrong flags, filters or configuration. Clap's own errors have the same code.
pub(crate) const WRONG_USE: u8 = 2;

/// Returns the exit code of a program that has ended with this result, and prints its error.
pub fn exit_code(ended: anyhow::Result<ExitCode>) -> ExitCode {
    match ended {
        Ok(code) => code,
        // The reader of a list has closed its end of the pipe, and wants no more of the list.
        Err(error) if print::is_closed_output(&error) => ExitCode::SUCCESS,
        Err(error) => {
            // An error that is in the server's log is not printed again.
            if !log::failure(&error) {
                print::note!("hark: {error:#}");
            }
            failure_code(&error)
        }
    }
}

/// Returns the exit code of a program that fails with this error.
pub(crate) fn failure_code(error: &anyhow::Error) -> ExitCode {
    let wrong_use = error
        .chain()
        .any(|cause| cause.is::<Faults>() || cause.is::<FilterFault>() || cause.is::<WrongUse>());
    if wrong_use { ExitCode::from(WRONG_USE) } else { ExitCode::FAILURE }
}

/// Raises the limit of open files to the maximum that this process may set, since every connection
/// uses a file descriptor. The usual limit of 1,024 is meant for programs that call `select`.
pub fn allow_files() {
    let allowed = getrlimit(Resource::Nofile);
    // Raising the limit to its maximum does not fail. The server reports a limit that is too low.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: allowed.maximum, ..allowed });
}

/// Returns the path of another program of Hark: the file beside the running program if there is
/// one, otherwise the name alone, which is looked up in PATH.
pub fn beside(name: &str) -> PathBuf {
    let program = std::env::current_exe().ok();
    let beside = program.and_then(|program| Some(program.parent()?.join(name)));
    beside.filter(|path| path.is_file()).unwrap_or_else(|| name.into())
}

/// Joins the paragraphs of the `after_help` texts of the command and its subcommands into single
/// lines, which clap wraps at the width of the terminal.
pub fn reflowed(command: clap::Command) -> clap::Command {
    let after = command.get_after_help().map(ToString::to_string);
    let command = match after {
        Some(after) => command.after_help(paragraphs(&after)),
        None => command,
    };
    command.mut_subcommands(reflowed)
}

/// Joins the lines of each paragraph. Indented lines stay unchanged.
fn paragraphs(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut joins = false;
    for line in text.lines() {
        let is_text = !line.is_empty() && !line.starts_with(' ');
        if !out.is_empty() {
            out.push(if joins && is_text { ' ' } else { '\n' });
        }
        out.push_str(line);
        joins = is_text;
    }
    out
}
