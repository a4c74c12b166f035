//! The ownership of an archive's files: error messages for users without access, and the owner of
//! files that root creates.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use anyhow::Context as _;
use hark_store_embedded::permissions;
use rustix::process::geteuid;

use crate::print;

/// The list of this machine's users, for looking up the names of owners.
const USERS: &str = "/etc/passwd";

/// Returns the error message for a `path` that this user may not open: the owner, and advice.
pub(crate) fn denied(path: &Path) -> String {
    let us = geteuid().as_raw();
    let owner = path.ancestors().find_map(|path| Some((path, fs::metadata(path).ok()?.uid())));
    match owner {
        Some((path, owner)) if owner != us => {
            let name = name(owner).unwrap_or_else(|| format!("#{owner}"));
            let sudo = if owner == 0 { "sudo".into() } else { format!("sudo -u '{name}'") };
            format!(
                "{} belongs to {}, and {} may not open it. Run the command as that user: {sudo} hark ... \
                 Nothing was changed",
                path.display(),
                user(owner),
                user(us)
            )
        }
        _ => format!(
            "{} may not open {}: `ls -ld` shows what its permissions and those of the folders above \
             it allow. Nothing was changed",
            user(us),
            path.display()
        ),
    }
}

/// Creates `dir`, if missing, for an archive that is made from the file or folder `source`. If root
/// creates the directory, the directory and its later content belong to the owner of `source`.
pub(crate) fn make_dir_like(dir: &Path, source: &Path) -> anyhow::Result<()> {
    permissions::create_dir_like(dir, source).with_context(|| {
        format!("the directory {} could not be made; name another one", dir.display())
    })
}

/// If root runs this process, prints the owner of the archive in `dir`. The archive was made from
/// the file or folder `source`.
pub(crate) fn report_to_root(dir: &Path, source: Option<&Path>) {
    if !geteuid().is_root() {
        return;
    }
    let owner = |path: &Path| fs::metadata(path).map_or(0, |about| about.uid());
    let dir_shown = dir.display();
    match (owner(dir), source.map_or(0, owner)) {
        (0, 0) => print::note!(
            "hark: {dir_shown} belongs to root; if the server runs as another user, make that \
             user the owner: chown -R USER: {dir_shown}"
        ),
        (0, source) => print::note!(
            "hark: {dir_shown} belongs to root, and its source to {}; if the server runs as that \
             user: chown -R {}: {dir_shown}",
            user(source),
            name(source).unwrap_or_else(|| source.to_string())
        ),
        (owner, _) => print::note!("hark: {dir_shown} belongs to {}", user(owner)),
    }
}

/// Returns a user as text: `hark (999)`, or `the user 999` for a user without a name on this
/// machine.
fn user(id: u32) -> String {
    name(id).map_or_else(|| format!("the user {id}"), |name| format!("{name} ({id})"))
}

/// Returns the name of a user; `None` if this machine's list lacks the user.
fn name(id: u32) -> Option<String> {
    let users = fs::read_to_string(USERS).ok()?;
    users.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(id)).then(|| name.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_have_names_and_numbers() {
        assert_eq!(user(0), "root (0)");
        assert_eq!(user(4_000_000_001), "the user 4000000001");
    }
}
