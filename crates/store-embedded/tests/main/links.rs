//! Operations that root performs in a directory owned by a service's user.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, lchown, symlink};
use std::path::Path;

use hark_store_embedded::disk::{Disk as _, RealDisk};
use hark_store_embedded::{DirectoryLock, permissions};
use hark_testkit::folder::Folder;

const SERVICE: u32 = 65_534;

#[test]
fn root_follows_its_own_links_and_none_of_a_service_user() {
    if fs::metadata("/proc/self").map_or(1, |about| about.uid()) != 0 {
        return println!("passed over: only root checks the owners of links");
    }
    let root = Folder::new("links");
    let (data, victim) = (root.join("data"), root.join("victim"));
    fs::create_dir_all(&data).unwrap();
    fs::create_dir_all(victim.join("log")).unwrap();
    let secret = victim.join("secret");
    fs::write(&secret, "keep this").unwrap();
    lchown(&data, Some(SERVICE), Some(SERVICE)).unwrap();
    let link = |to: &Path, name: &str, user: u32| {
        let at = data.join(name);
        symlink(to, &at).unwrap();
        lchown(&at, Some(user), Some(user)).unwrap();
        at
    };
    for name in ["LOCK", "WRITER", "RESERVE.new", "MANIFEST"] {
        let at = link(&secret, name, SERVICE);
        let refused = [
            permissions::create_file(&at).map(drop),
            RealDisk.append(&at, 0, 0).map(drop),
            RealDisk.map(&at, None).map(drop),
            RealDisk.read(&at).map(drop),
        ];
        for refused in refused {
            assert!(refused.unwrap_err().to_string().contains("link that user"), "{name}");
        }
    }
    assert!(DirectoryLock::acquire(&data).is_err());
    let shelf = link(&victim, "nostr", SERVICE);
    assert!(RealDisk.create(&shelf.join("log/00000001-0.log")).is_err());
    assert!(RealDisk.create_dir(&shelf.join("seg")).is_err());
    assert!(RealDisk.remove(&shelf.join("secret")).is_err());
    assert!(RealDisk.rename(&shelf.join("secret"), &data.join("mine")).is_err());
    assert!(RealDisk.list(&shelf).is_err() && RealDisk.sync_dir(&shelf).is_err());
    assert_eq!(fs::read_to_string(&secret).unwrap(), "keep this");
    assert_eq!(fs::read_dir(victim.join("log")).unwrap().count(), 0);
    assert_eq!(fs::metadata(&secret).unwrap().uid(), 0);
    // An operator can place a shelf on another disk with a symbolic link that root owns.
    let other = link(&victim, "waku", 0);
    drop(RealDisk.create(&other.join("log/one.log")).unwrap());
    RealDisk.rename(&other.join("log/one.log"), &other.join("log/two.log")).unwrap();
    RealDisk.sync_dir(&other.join("log")).unwrap();
    assert_eq!(RealDisk.list(&other.join("log")).unwrap(), [("two.log".to_owned(), 0)]);
    RealDisk.remove(&other.join("log/two.log")).unwrap();
    RealDisk.create_dir(&other.join("a/b")).unwrap();
    assert!(victim.join("a/b").is_dir());
}
