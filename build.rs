//! Sets the environment variable `HARK_VERSION` of the compiler to the version of the program: the
//! version of the package and, if known, the commit and its date.
//!
//! A build without a repository, such as a build of a source archive, gets the commit from the
//! variable `HARK_COMMIT`.

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-env-changed=HARK_COMMIT");
    let given = std::env::var("HARK_COMMIT").ok().filter(|commit| !commit.trim().is_empty());
    let version = env!("CARGO_PKG_VERSION");
    match given.or_else(|| commit(Path::new("."))) {
        Some(commit) => println!("cargo::rustc-env=HARK_VERSION={version} ({})", commit.trim()),
        None => println!("cargo::rustc-env=HARK_VERSION={version}"),
    }
}

/// Returns the commit of the repository in this folder, and the date of the commit. Returns `None`
/// if there is no program `git`, or if the folder is only a subfolder of a repository: that
/// repository has other sources.
pub(crate) fn commit(folder: &Path) -> Option<String> {
    // The flag `--git-dir` keeps git from looking for a repository in the folders above.
    let git = |args: &[&str]| {
        let mut command = Command::new("git");
        let output = command.current_dir(folder).arg("--git-dir=.git").args(args).output().ok()?;
        let text = String::from_utf8(output.stdout).ok()?;
        output.status.success().then(|| text.trim().to_owned())
    };
    let commit = git(&["log", "-1", "--no-show-signature", "--abbrev=8", "--format=%h %cs"])?;
    // Every checkout changes HEAD, and every commit changes logs/HEAD.
    for file in ["HEAD", "logs/HEAD"] {
        let path = git(&["rev-parse", "--git-path", file]).map(|path| folder.join(path));
        // If Cargo watched a missing file, it would run this script at every build.
        if let Some(path) = path.filter(|path| path.exists()) {
            println!("cargo::rerun-if-changed={}", path.display());
        }
    }
    Some(commit)
}
