//! The version names the commit of the build, and all outputs name the same version.

use std::process::Command;

use hark_testkit::folder::Folder;
use hark_testkit::http::{get, metric};
use hark_testkit::skipped::skip;

use super::support::{Place, hark};

/// The build script, whose function `commit` reads the commit.
#[path = "../../build.rs"]
#[allow(dead_code)]
mod build;

/// Whether a text is a commit and its date, such as `9f3500e8 2026-11-27`.
fn is_commit(text: &str) -> bool {
    text.split_once(' ').is_some_and(|(commit, date)| {
        let numbers: Vec<&str> = date.split('-').collect();
        let is_number = |text: &&str| text.bytes().all(|byte| byte.is_ascii_digit());
        commit.len() >= 8
            && commit.bytes().all(|byte| byte.is_ascii_hexdigit())
            && numbers.iter().all(is_number)
            && numbers.iter().map(|number| number.len()).collect::<Vec<_>>() == [4, 2, 2]
    })
}

#[test]
fn every_output_names_the_version_of_the_build() {
    let said = hark(&["--version"]).text();
    let version = said.strip_prefix("hark ").and_then(|rest| rest.strip_suffix('\n')).unwrap();
    let rest = version.strip_prefix(env!("CARGO_PKG_VERSION")).unwrap_or_else(|| panic!("{said}"));
    // A commit from the variable HARK_COMMIT may have any form.
    if !rest.is_empty() && option_env!("HARK_COMMIT").is_none() {
        let commit = rest.strip_prefix(" (").and_then(|rest| rest.strip_suffix(')'));
        assert!(commit.is_some_and(is_commit), "{said}");
    }
    assert_eq!(hark(&["bench", "--version"]).text(), format!("hark bench {version}\n"));
    let place = Place::new("version");
    let server = place.serve();
    let page = get(&server.address, "/metrics").ok();
    let name = format!("hark_build_info{{version=\"{version}\"}}");
    assert_eq!(metric(&page, &name), Some(1.0), "{name}: {page}");
    let (code, log) = server.terminate();
    assert!(code == 0 && log.contains(version), "{version}: {log}");
}

#[test]
fn a_build_names_the_commit_of_its_own_repository_and_of_no_other() {
    let folder = Folder::new("version");
    let git = |args: &[&str]| {
        let mut command = Command::new("git");
        for name in ["GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"] {
            command.env_remove(name);
        }
        command.args(["-c", "user.name=me", "-c", "user.email=me@example.com"]);
        command.args(["-c", "commit.gpgSign=false"]);
        command.env("GIT_COMMITTER_DATE", "2026-11-27T12:00:00+0000");
        command.current_dir(&*folder).args(args).output()
    };
    if git(&["--version"]).is_err() {
        return skip("there is no git here");
    }
    assert_eq!(build::commit(&folder), None);
    for args in [&["init", "--quiet"][..], &["commit", "--quiet", "--allow-empty", "-m", "one"]] {
        let output = git(args).unwrap();
        assert!(output.status.success(), "{args:?}: {output:?}");
    }
    let commit = build::commit(&folder).unwrap();
    assert!(is_commit(&commit) && commit.ends_with(" 2026-11-27"), "{commit}");
    // A source archive that is unpacked inside another repository.
    let inside = folder.join("inside");
    std::fs::create_dir(&inside).unwrap();
    assert_eq!(build::commit(&inside), None);
}
