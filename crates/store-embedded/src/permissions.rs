//! Makes files and directories that only their owner can open, since an archive may hold private
//! messages. A file or directory that root makes is given to the owner of its parent directory. So
//! after a command that root runs, a service can still open its archive. [`create_dir_like`] makes
//! directories for another owner.

//! In the path of a file or directory, root follows no symbolic link of another user (`links`).

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use rustix::fs::OFlags;

use crate::links::SafePath;

/// Creates an empty file; an existing file is emptied.
pub fn create_file(path: &Path) -> io::Result<File> {
    open(path, OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC)
}

/// Opens a file for reading and writing. If the file is missing, makes an empty file that only its
/// owner can open.
pub fn open_file(path: &Path) -> io::Result<File> {
    open(path, OFlags::RDWR | OFlags::CREATE)
}

fn open(path: &Path, flags: OFlags) -> io::Result<File> {
    let place = SafePath::of(path)?;
    let is_new = place.about()?.is_none();
    let file = place.open(flags, 0o600)?;
    if is_new {
        match_owner(&place)?;
    }
    Ok(file)
}

/// Creates a directory and its missing parents.
pub fn create_dir(path: &Path) -> io::Result<()> {
    create_dirs(path, &match_owner)
}

/// Creates a directory and its missing parents. If root makes a directory, it is given to the owner
/// of `model`, unless root owns `model` as well.
pub fn create_dir_like(path: &Path, model: &Path) -> io::Result<()> {
    let model = fs::metadata(model)?;
    let owner = (model.uid(), model.gid());
    create_dirs(path, &|place| {
        if model.uid() == 0 { match_owner(place) } else { change_owner_to(place, owner) }
    })
}

/// Creates a directory and its missing parents, and passes each new directory to `give`.
fn create_dirs(path: &Path, give: &dyn Fn(&SafePath) -> io::Result<()>) -> io::Result<()> {
    if path.as_os_str().is_empty() || path.is_dir() {
        return Ok(());
    }
    if let Some(parent) = path.parent() {
        create_dirs(parent, give)?;
    }
    let place = SafePath::of(path)?;
    match place.make_dir(0o700) {
        Ok(()) => give(&place),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        Err(error) => Err(error),
    }
}

/// If other users can read or enter a directory, returns a warning with a remedy.
pub fn warning(folder: &Path) -> io::Result<Option<String>> {
    let mode = fs::metadata(folder)?.mode() & 0o7777;
    Ok((mode & 0o005 != 0).then(|| {
        let folder = folder.display();
        format!(
            "every user of this machine can look into {folder} (mode {mode:03o}), and read what is \
             private in it; `chmod 700 {folder}` keeps them out"
        )
    }))
}

/// Gives a file or directory that root has made to the owner of its parent directory.
fn match_owner(place: &SafePath) -> io::Result<()> {
    if !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    match place.about_folder()? {
        Some(folder) => change_owner_to(place, (folder.st_uid, folder.st_gid)),
        None => Ok(()),
    }
}

/// Gives a file or directory that root has made to `user` and `group`, unless `user` is root.
fn change_owner_to(place: &SafePath, (user, group): (u32, u32)) -> io::Result<()> {
    if !rustix::process::geteuid().is_root() || user == 0 {
        return Ok(());
    }
    place.change_owner(user, group)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hark_testkit::disk::scratch;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o777
    }

    #[test]
    fn what_is_made_is_private_and_what_is_there_stays_as_it_is() {
        let root = scratch("private");
        let inner = root.join("a/b");
        create_dir(&inner).unwrap();
        create_dir(&inner).unwrap();
        assert_eq!((mode(&root), mode(&inner)), (0o700, 0o700));
        let file = inner.join("file");
        create_file(&file).unwrap();
        assert_eq!(mode(&file), 0o600);
        assert_eq!(warning(&inner).unwrap(), None);
        let shared = |path: &Path, mode| {
            use std::os::unix::fs::PermissionsExt as _;
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        };
        shared(&file, 0o640);
        shared(&inner, 0o755);
        create_file(&file).unwrap();
        create_dir(&inner).unwrap();
        assert_eq!((mode(&file), mode(&inner)), (0o640, 0o755));
        let warning = warning(&inner).unwrap().expect("a warning");
        assert!(warning.contains("chmod 700"), "{warning}");
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn what_root_makes_belongs_to_the_owner_of_the_folder() {
        if !rustix::process::geteuid().is_root() {
            return println!("passed over: only root can give files away");
        }
        let root = scratch("owner");
        create_dir(&root).unwrap();
        std::os::unix::fs::chown(&root, Some(65_534), Some(65_534)).unwrap();
        create_dir(&root.join("log")).unwrap();
        create_file(&root.join("log/file")).unwrap();
        for made in ["log", "log/file"] {
            assert_eq!(fs::metadata(root.join(made)).unwrap().uid(), 65_534, "{made}");
        }
        let other = scratch("owner-like");
        create_dir(&other).unwrap();
        create_dir_like(&other.join("a/b"), &root.join("log")).unwrap();
        create_dir_like(&other, &root).unwrap();
        create_dir_like(&other.join("c"), &other).unwrap();
        for (made, owner) in [("", 0), ("a", 65_534), ("a/b", 65_534), ("c", 0)] {
            assert_eq!(fs::metadata(other.join(made)).unwrap().uid(), owner, "{made}");
        }
        fs::remove_dir_all(other).unwrap();
        fs::remove_dir_all(root).unwrap();
    }
}
