//! A disk that loses unsynced changes and fails on demand.
//!
//! Operations use real files, so that memory maps work. For each file, the disk records the bytes
//! that were written since the file's last sync. For each directory, it records the names that were
//! changed since the directory's last sync. [`FaultyDisk::crash`] makes a disk in a state that a
//! power cut may leave: it has all synced changes, and any of the other changes, torn and in any
//! order.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hark_store_embedded::disk::{Disk, DiskFile, RealDisk};
use parking_lot::Mutex;

use crate::random::Random;

pub use crate::folder::scratch;

/// The error number of "Too many open files", on every system.
const EMFILE: i32 = 24;

/// The ways in which the disk fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// One operation fails, perhaps after a part of its work. Later operations succeed. If the
    /// operation is a sync, its changes never become durable, even if later syncs succeed.
    Once,
    /// The disk is full: nothing can be created or written. Syncs, renames and removals still work.
    Full,
    /// Too many files are open: no file can be created or opened. Other operations work.
    NoFiles,
    /// The power fails: every operation from then on fails.
    Power,
}

/// Whether a change can still become durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// The change is not synced: it may survive a crash or be lost.
    Open,
    /// The sync has failed: the change may survive a crash or be lost, and no later sync makes it
    /// durable.
    Suspect,
    Durable,
}

#[derive(Clone, Debug)]
enum Change {
    Write(usize, Vec<u8>),
    Cut(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Node {
    File(usize),
    Dir,
}

/// The names that one operation added to, or removed from, a directory.
struct Naming {
    names: Vec<(PathBuf, Option<Node>)>,
    fate: Fate,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    Create,
    /// A directory is opened, so that it can be synced.
    Open,
    Write,
    Other,
}

struct State {
    random: Random,
    files: Vec<Vec<(Change, Fate)>>,
    namings: Vec<Naming>,
    /// The current files, from the view of the running process.
    now: HashMap<PathBuf, usize>,
    armed: Option<(Trouble, u64)>,
    struck: bool,
    operations: u64,
    /// Maximum number of bytes of all files together. With `None`, only the machine's disk is a
    /// limit.
    room: Option<u64>,
}

/// A disk that can fail. All clones share the disk. Its files are removed when the last clone is
/// dropped.
#[derive(Clone)]
pub struct FaultyDisk(Arc<Inner>);

struct Inner {
    root: PathBuf,
    state: Mutex<State>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        // A failure is ignored: files that remain in the temporary directory do no harm.
        let _ = fs::remove_dir_all(&self.root);
    }
}

impl FaultyDisk {
    /// Creates an empty disk.
    pub fn new(seed: u64) -> io::Result<Self> {
        let root = scratch("disk");
        fs::create_dir_all(&root)?;
        let state = State {
            random: Random::new(seed),
            files: Vec::new(),
            namings: Vec::new(),
            now: HashMap::new(),
            armed: None,
            struck: false,
            operations: 0,
            room: None,
        };
        Ok(Self(Arc::new(Inner { root, state: Mutex::new(state) })))
    }

    /// The directory of the disk's files.
    pub fn root(&self) -> &Path {
        &self.0.root
    }

    /// Makes `trouble` happen after `after` further operations.
    pub fn arm(&self, trouble: Trouble, after: u64) {
        let mut state = self.0.state.lock();
        (state.armed, state.struck) = (Some((trouble, after)), false);
    }

    /// Bounds the total bytes of all files, or lifts the bound.
    pub fn set_capacity(&self, room: Option<u64>) {
        self.0.state.lock().room = room;
    }

    /// Returns the total bytes of all files.
    pub fn used(&self) -> u64 {
        self.0.state.lock().used(self.root())
    }

    /// Ends the trouble that [`FaultyDisk::arm`] has set.
    pub fn end_faults(&self) {
        self.0.state.lock().armed = None;
    }

    /// Returns whether the trouble has happened.
    pub fn struck(&self) -> bool {
        self.0.state.lock().struck
    }

    /// Returns the number of operations that changed data or made data durable.
    pub fn operations(&self) -> u64 {
        self.0.state.lock().operations
    }

    /// Makes a new disk in a state that a power cut at this moment may leave.
    pub fn crash(&self, random: &mut Random) -> io::Result<Self> {
        let fresh = Self::new(random.bits())?;
        let state = self.0.state.lock();
        // With probability 1/5, no unsynced change is kept. With probability 1/5, all of them are
        // kept, which is the most frequent case in practice.
        let keep = [0, 4, 1, 2, 3][random.below(5)];
        let kept = |random: &mut Random| random.below(4) < keep;
        let mut names: BTreeMap<&Path, Node> = BTreeMap::new();
        for naming in &state.namings {
            if naming.fate != Fate::Durable && !kept(random) {
                continue;
            }
            for (name, node) in &naming.names {
                match node {
                    Some(node) => names.insert(name, *node),
                    None => names.remove(name.as_path()),
                };
            }
        }
        let mut after = fresh.0.state.lock();
        for (name, node) in names {
            let path = fresh.root().join(name);
            if !path.parent().is_some_and(Path::is_dir) {
                continue;
            }
            match node {
                Node::Dir => fs::create_dir(&path)?,
                Node::File(file) => {
                    let bytes = content(&state.files[file], random, &kept);
                    fs::write(&path, &bytes)?;
                    let number = after.files.len();
                    after.files.push(vec![(Change::Write(0, bytes), Fate::Durable)]);
                    after.now.insert(name.into(), number);
                }
            }
            let node = if node == Node::Dir { node } else { Node::File(after.files.len() - 1) };
            after
                .namings
                .push(Naming { names: vec![(name.into(), Some(node))], fate: Fate::Durable });
        }
        drop(after);
        Ok(fresh)
    }

    fn relative(&self, path: &Path) -> PathBuf {
        path.strip_prefix(self.root()).unwrap_or(path).into()
    }
}

/// Returns the bytes that a file has after a crash: each unsynced change is kept, lost or torn.
fn content(
    changes: &[(Change, Fate)],
    random: &mut Random,
    kept: &impl Fn(&mut Random) -> bool,
) -> Vec<u8> {
    const SECTOR: usize = 512;
    let mut bytes: Vec<u8> = Vec::new();
    for (change, fate) in changes {
        let durable = *fate == Fate::Durable;
        match change {
            Change::Cut(len) if durable || kept(random) => bytes.truncate(*len),
            Change::Cut(_) => {}
            Change::Write(at, new) if durable => put(&mut bytes, *at, new),
            Change::Write(at, new) => match random.below(4) {
                0 | 1 if kept(random) => put(&mut bytes, *at, new),
                0 | 1 => {}
                2 => {
                    let torn = random.below(new.len() + 1);
                    put(&mut bytes, *at, &new[..torn]);
                    // The new length may be kept even if the data is lost.
                    if random.once_in(2) && bytes.len() < at + new.len() {
                        bytes.resize(at + new.len(), 0);
                    }
                }
                _ => {
                    let mut from = 0;
                    while from < new.len() {
                        let to = ((at + from) / SECTOR * SECTOR + SECTOR - at).min(new.len());
                        if kept(random) {
                            put(&mut bytes, at + from, &new[from..to]);
                        }
                        from = to;
                    }
                }
            },
        }
    }
    bytes
}

fn put(bytes: &mut Vec<u8>, at: usize, new: &[u8]) {
    if new.is_empty() {
        return;
    }
    if bytes.len() < at + new.len() {
        bytes.resize(at + new.len(), 0);
    }
    bytes[at..at + new.len()].copy_from_slice(new);
}

impl State {
    /// Counts an operation. Returns the error if the operation must fail.
    fn strike(&mut self, operation: Operation) -> Option<io::Error> {
        self.operations += 1;
        let (trouble, left) = self.armed.as_mut()?;
        if *left > 0 {
            *left -= 1;
            return None;
        }
        let trouble = *trouble;
        let error = match trouble {
            Trouble::Full if [Operation::Open, Operation::Other].contains(&operation) => {
                return None;
            }
            Trouble::NoFiles if [Operation::Write, Operation::Other].contains(&operation) => {
                return None;
            }
            Trouble::NoFiles => io::Error::from_raw_os_error(EMFILE),
            Trouble::Full => io::Error::new(io::ErrorKind::StorageFull, "no room (a test)"),
            Trouble::Once | Trouble::Power => io::Error::other("the disk failed (a test)"),
        };
        if trouble == Trouble::Once {
            self.armed = None;
        }
        self.struck = true;
        Some(error)
    }

    /// Returns the error if no file can be opened now. Does not count as an operation.
    fn lacks_files(&mut self) -> Option<io::Error> {
        let lacks = matches!(self.armed, Some((Trouble::NoFiles, 0)));
        self.struck |= lacks;
        lacks.then(|| io::Error::from_raw_os_error(EMFILE))
    }

    fn used(&self, root: &Path) -> u64 {
        let bytes = |name| fs::metadata(root.join(name)).map_or(0, |known| known.len());
        self.now.keys().map(bytes).sum()
    }

    fn name(&mut self, names: Vec<(PathBuf, Option<Node>)>) {
        self.namings.push(Naming { names, fate: Fate::Open });
    }

    fn set_fate(&mut self, file: usize, fate: Fate) {
        for (_, known) in self.files[file].iter_mut().filter(|(_, known)| *known == Fate::Open) {
            *known = fate;
        }
    }
}

struct FaultyFile {
    disk: FaultyDisk,
    number: usize,
    file: fs::File,
    len: usize,
}

impl DiskFile for FaultyFile {
    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut state = self.disk.0.state.lock();
        let mut failed = state.strike(Operation::Write);
        let mut written = match &failed {
            Some(_) => &bytes[..state.random.below(bytes.len() + 1)],
            None => bytes,
        };
        let left = state.room.map(|room| room.saturating_sub(state.used(self.disk.root())));
        if let Some(left) = left.filter(|left| *left < written.len() as u64) {
            written = &written[..left as usize];
            failed = Some(io::Error::new(io::ErrorKind::StorageFull, "no room (a small disk)"));
        }
        io::Write::write_all(&mut self.file, written)?;
        state.files[self.number].push((Change::Write(self.len, written.into()), Fate::Open));
        self.len += written.len();
        failed.map_or(Ok(()), Err)
    }

    fn sync(&mut self) -> io::Result<()> {
        let mut state = self.disk.0.state.lock();
        let failed = state.strike(Operation::Other);
        state.set_fate(self.number, if failed.is_some() { Fate::Suspect } else { Fate::Durable });
        failed.map_or(Ok(()), Err)
    }

    /// Does nothing, because reserving space has no visible effect.
    fn reserve(&mut self, _: u64, _: u64) -> io::Result<()> {
        Ok(())
    }

    fn cut(&mut self, len: u64) -> io::Result<()> {
        let mut state = self.disk.0.state.lock();
        if let Some(error) = state.strike(Operation::Other) {
            return Err(error);
        }
        self.file.cut(len)?;
        self.len = len as usize;
        state.files[self.number].push((Change::Cut(self.len), Fate::Open));
        Ok(())
    }
}

impl FaultyDisk {
    /// Syncs the names in a directory. `operation` is the operation that may fail: the sync, or the
    /// opening of the directory before it is synced.
    fn sync_names(&self, path: &Path, operation: Operation) -> io::Result<()> {
        let mut state = self.0.state.lock();
        let failed = state.strike(operation);
        if let Some(error) = &failed
            && error.raw_os_error() == Some(EMFILE)
        {
            // The sync has not begun, so a later sync can still make the changes durable.
            return Err(io::Error::from_raw_os_error(EMFILE));
        }
        let fate = if failed.is_some() { Fate::Suspect } else { Fate::Durable };
        let dir = self.relative(path);
        for naming in &mut state.namings {
            let here = naming.names.iter().any(|(name, _)| name.parent() == Some(&dir));
            // A failed sync leaves the name of a new directory unsynced, and a later sync can make
            // the name durable. A program that retries does not create the directory again.
            let folder = naming.names.iter().any(|(_, node)| *node == Some(Node::Dir));
            if here && naming.fate == Fate::Open && !(folder && failed.is_some()) {
                naming.fate = fate;
            }
        }
        failed.map_or(Ok(()), Err)
    }
}

impl Disk for FaultyDisk {
    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        let mut state = self.0.state.lock();
        if let Some(error) = state.strike(Operation::Create) {
            return Err(error);
        }
        let file = fs::File::create(path)?;
        let name = self.relative(path);
        let number = if let Some(&number) = state.now.get(&name) {
            state.files[number].push((Change::Cut(0), Fate::Open));
            number
        } else {
            let number = state.files.len();
            state.files.push(Vec::new());
            state.now.insert(name.clone(), number);
            state.name(vec![(name, Some(Node::File(number)))]);
            number
        };
        Ok(Box::new(FaultyFile { disk: self.clone(), number, file, len: 0 }))
    }

    fn append(&self, path: &Path, sure: u64, len: u64) -> io::Result<Box<dyn DiskFile>> {
        let mut state = self.0.state.lock();
        let Some(&number) = state.now.get(&self.relative(path)) else {
            return Err(io::ErrorKind::NotFound.into());
        };
        if let Some(error) = state.strike(Operation::Write) {
            return Err(error);
        }
        let again = fs::read(path)?[sure as usize..len as usize].to_vec();
        let file = fs::OpenOptions::new().append(true).open(path)?;
        file.set_len(len)?;
        state.files[number].push((Change::Cut(len as usize), Fate::Open));
        state.files[number].push((Change::Write(sure as usize, again), Fate::Open));
        let failed = state.strike(Operation::Other);
        state.set_fate(number, if failed.is_some() { Fate::Suspect } else { Fate::Durable });
        match failed {
            Some(error) => Err(error),
            None => {
                Ok(Box::new(FaultyFile { disk: self.clone(), number, file, len: len as usize }))
            }
        }
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut state = self.0.state.lock();
        let failed = state.strike(Operation::Other);
        if failed.is_none() || state.random.once_in(2) {
            fs::rename(from, to)?;
            let (from, to) = (self.relative(from), self.relative(to));
            if let Some(number) = state.now.remove(&from) {
                state.now.insert(to.clone(), number);
                state.name(vec![(from, None), (to, Some(Node::File(number)))]);
            }
        }
        failed.map_or(Ok(()), Err)
    }

    fn replace(&self, from: &Path, to: &Path) -> io::Result<()> {
        // A real file system opens the directory first. So if no file can be opened, nothing has
        // changed.
        if let Some(error) = self.0.state.lock().lacks_files() {
            return Err(error);
        }
        self.rename(from, to)?;
        self.sync_names(to.parent().unwrap_or(Path::new(".")), Operation::Other)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut state = self.0.state.lock();
        let failed = state.strike(Operation::Other);
        if failed.is_none() || state.random.once_in(2) {
            fs::remove_file(path)?;
            let name = self.relative(path);
            state.now.remove(&name);
            state.name(vec![(name, None)]);
        }
        failed.map_or(Ok(()), Err)
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        let mut state = self.0.state.lock();
        let missing: Vec<&Path> =
            path.ancestors().take_while(|ancestor| !ancestor.is_dir()).collect();
        if missing.is_empty() {
            return Ok(());
        }
        if let Some(error) = state.strike(Operation::Create) {
            return Err(error);
        }
        for path in missing.into_iter().rev() {
            fs::create_dir(path)?;
            let name = self.relative(path);
            state.name(vec![(name, Some(Node::Dir))]);
        }
        Ok(())
    }

    fn free(&self, path: &Path) -> io::Result<u64> {
        let state = self.0.state.lock();
        match state.room {
            Some(room) => Ok(room.saturating_sub(state.used(self.root()))),
            None => RealDisk.free(path),
        }
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        self.sync_names(path, Operation::Open)
    }
}
