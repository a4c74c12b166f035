//! The command line of a plugin.

use std::fs::Metadata;
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// A command line, which a shell runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PluginCommand {
    /// The command line. Empty: no plugin.
    pub line: String,
    /// The folder in which the command runs. `None`: the folder of this process.
    pub folder: Option<PathBuf>,
}

impl PluginCommand {
    /// The path of the plugin's file. `None` if the command has arguments or is no path.
    fn file(&self) -> Option<PathBuf> {
        let is_path = self.line.contains('/') && !self.line.contains(char::is_whitespace);
        let folder = self.folder.as_deref().unwrap_or(Path::new(""));
        is_path.then(|| folder.join(&self.line))
    }

    /// The time at which the plugin's file was changed. `None` if the command names no file, or if
    /// the file cannot be read.
    pub(crate) fn modified(&self) -> Option<SystemTime> {
        self.file()?.metadata().and_then(|facts| facts.modified()).ok()
    }

    /// Returns the reason why the plugin's file cannot be run. `None` if the file can be run, or if
    /// the command has arguments.
    pub fn fault(&self) -> Option<String> {
        let file = self.file()?;
        let is_program = |facts: &Metadata| facts.permissions().mode() & 0o111 != 0;
        let shown = file.display();
        match file.metadata() {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                Some(format!("{shown} is missing"))
            }
            Err(error) => Some(format!("{shown} cannot be read: {error}")),
            Ok(facts) if facts.is_dir() => Some(format!("{shown} is a folder")),
            Ok(facts) if !is_program(&facts) => {
                Some(format!("{shown} is not executable; run `chmod +x {shown}`"))
            }
            Ok(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_cannot_be_run_is_reported() {
        let folder = std::env::temp_dir().join(format!("hark-plugin-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("plain.py"), "").unwrap();
        let fault =
            |line: &str| PluginCommand { line: line.into(), folder: Some(folder.clone()) }.fault();
        for (line, words) in [
            ("./plain.py", "is not executable"),
            ("./missing.py", "is missing"),
            ("/", "is a folder"),
        ] {
            assert!(fault(line).is_some_and(|fault| fault.contains(words)), "{line}");
        }
        // The shell finds these programs, or reports that they are missing.
        for line in ["", "cat", "/bin/sh", "./missing.py --with argument"] {
            assert_eq!(fault(line), None, "{line}");
        }
        std::fs::remove_dir_all(folder).unwrap();
    }
}
