//! Files mapped into memory for reading. This is the only module of the crate with `unsafe`.
//!
//! Mapped bytes do not change: a segment is written once, and readers read only the bytes of a log
//! that are already written. No other program may shorten a file of a shelf while Hark has the file
//! open.
//!
//! # Pages that cannot be read
//!
//! If another program shortens an open file nevertheless, or if the disk cannot read a sector, a
//! page of the map cannot be read. The system then sends SIGBUS, which by default ends the process.
//! If Hark read files by system calls instead, a failed read would return an error and send no
//! signal. But a system call for each record, and for each step of a search in an index, is many
//! times slower than a read from a map. A check in advance is not possible: only a read shows
//! whether a page is readable. So Hark catches the signal (`bus::handle`). The handler replaces the
//! unreadable page with zeros and counts the fault ([`faults`], [`Map::is_unreadable`]), and the
//! read goes on. No caller relies on these zeros:
//!
//! - a query compares [`faults`] before and after: if a file of the shelf has new faults, the
//!   result is an error (`engine/faults.rs`);
//! - a segment with an unreadable page is no longer read: queries that need it fail until it is
//!   rebuilt from the log;
//! - in a log with an unreadable page, each read of a record verifies the record's checksum;
//! - replays, merges and rewrites end with an error.
//!
//! There are few maps, and each stays open for a long time. All open maps are in a list, in which
//! the handler finds the map of an address ([`crate::mapped`]). If the address of a fault is in no
//! map, the previous action for SIGBUS applies, as if there were no handler. If many pages of one
//! map are unreadable, the whole map is replaced, since the system limits the number of mappings of
//! a process. A caller that has few maps and needs every readable page can let the handler replace
//! many more pages one by one ([`Map::spare_readable_pages`]).
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::ops::{Deref, Range};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use memmap2::{Advice, Mmap, MmapOptions};

use rustix::fs::OFlags;

use crate::links::SafePath;
use crate::mapped::MapRegistration;

/// A mapped file. The map expects random access, unless it was made by [`Map::open_sequential`].
#[derive(Default)]
pub struct Map(Option<RegisteredMap>);

/// A map and its entry in the list. The entry is dropped before the map, so that no address in the
/// list is unmapped.
struct RegisteredMap {
    registered: MapRegistration,
    bytes: Mmap,
}

impl RegisteredMap {
    fn new(bytes: Mmap, advice: Advice) -> io::Result<Self> {
        #[cfg(target_os = "linux")]
        bus::catch()?;
        bytes.advise(advice)?;
        let start = bytes.as_ptr() as usize;
        Ok(Self { registered: MapRegistration::new(&(start..start + bytes.len())), bytes })
    }
}

impl Map {
    /// Maps a file that is read once, from front to back.
    pub fn open_sequential(path: &Path) -> io::Result<Self> {
        let file = open(path)?;
        if file.metadata()?.len() == 0 {
            return Ok(Self(None));
        }
        // SAFETY: as in `open`; `len` is the current length of the file.
        let map = unsafe { MmapOptions::new().map(&file)? };
        Ok(Self(Some(RegisteredMap::new(map, Advice::Sequential)?)))
    }

    /// Maps a file or, if `reserve` is given, its first `reserve` bytes. The file may be shorter
    /// than `reserve`. The bytes beyond its current end may be read after the file has grown.
    pub fn open(path: &Path, reserve: Option<usize>) -> io::Result<Self> {
        let file = open(path)?;
        let written = file.metadata()?.len() as usize;
        // In a map of an empty file, even the first page must not be read.
        if written == 0 {
            return Ok(Self(None));
        }
        let len = reserve.unwrap_or(written);
        // SAFETY: the file is only ever appended to (a log) or never written again (a segment), and
        // callers read only below the length that is known to be written.
        let map = unsafe { MmapOptions::new().len(len).map(&file)? };
        Ok(Self(Some(RegisteredMap::new(map, Advice::Random)?)))
    }

    /// Whether a read of the file has failed and returned zeros.
    #[inline]
    pub fn is_unreadable(&self) -> bool {
        self.faults() > 0
    }

    /// Number of failed reads of the map.
    #[inline]
    pub fn faults(&self) -> u32 {
        if faults() == 0 {
            return 0;
        }
        self.0.as_ref().map_or(0, |map| map.registered.slot().faults())
    }

    /// Notes that a part of the file is lost although no read has failed. Zeros without a failed
    /// read come from a hole, or from the rest of the last page of a shortened file.
    pub(crate) fn note_lost(&self) {
        if let Some(map) = &self.0 {
            map.registered.slot().note_fault();
            FAULTS.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Lets the handler replace up to [`PAGES_SPARING`] unreadable pages of this map one by one,
    /// instead of the whole map. Only a process with few such maps may use this: each replaced page
    /// splits a mapping, and by default the system allows 65,530 mappings.
    pub fn spare_readable_pages(&self) {
        if let Some(map) = &self.0 {
            map.registered.slot().replace_one_by_one(PAGES_SPARING);
        }
    }

    /// Makes the system read a part of the file from the disk in large pieces, because all bytes of
    /// the part are needed soon. The call does not wait for the reads.
    pub fn read_ahead(&self, part: Range<usize>) {
        if let Some(RegisteredMap { bytes, .. }) =
            self.0.as_ref().filter(|map| part.end <= map.bytes.len())
        {
            // This is only a hint: without it, the same bytes are read page by page.
            let _ = bytes.advise_range(Advice::WillNeed, part.start, part.len());
        }
    }

    /// Prefetches the bytes from `at` into the processor's cache, about as many as a typical record
    /// has. The call does not wait.
    #[inline]
    pub fn prefetch(&self, at: usize) {
        #[cfg(target_arch = "x86_64")]
        if let Some(bytes) = self.get(at..).filter(|bytes| bytes.len() >= LINES * 64) {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            for line in 0..LINES {
                // SAFETY: the address lies within `bytes`, and a prefetch of any address changes
                // nothing and never faults.
                unsafe { _mm_prefetch::<_MM_HINT_T0>(bytes.as_ptr().add(line * 64).cast()) };
            }
        }
    }
}

fn open(path: &Path) -> io::Result<File> {
    SafePath::of(path)?.open(OFlags::RDONLY, 0)
}

/// Maximum number of pages that are replaced one by one in a map that spares its readable pages. In
/// the worst case, each replaced page lies between two readable pages, and the map takes half of
/// the mappings that a process may have.
const PAGES_SPARING: u32 = 16_384;

/// Number of cache lines that are prefetched for a record.
#[cfg(target_arch = "x86_64")]
const LINES: usize = 12;

impl Deref for Map {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.0.as_ref().map(|map| &*map.bytes).unwrap_or_default()
    }
}

/// Number of failed reads of all maps.
static FAULTS: AtomicU64 = AtomicU64::new(0);

/// Returns the number of failed reads of maps since the process began. The number includes all
/// reads before the call.
#[inline]
pub(crate) fn faults() -> u64 {
    // Earlier reads must not be reordered behind this load.
    fence(Ordering::Acquire);
    FAULTS.load(Ordering::Acquire)
}

/// The error for a file with an unreadable part.
pub(crate) fn unreadable() -> io::Error {
    io::Error::other("a part of it could not be read: it was shortened, or the disk fails")
}

/// Catching SIGBUS.
#[cfg(target_os = "linux")]
mod bus {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
    use std::{io, mem, ptr};

    use super::FAULTS;
    use crate::mapped::{self, PAGES_EACH};

    /// Maximum number of pages that are replaced one by one in all maps together. Maps with their
    /// own limit do not count.
    const PAGES: u64 = 4096;

    /// Number of failed reads of the maps without their own limit.
    static FAULTS_COMMON: AtomicU64 = AtomicU64::new(0);
    static PAGE_BYTES: AtomicUsize = AtomicUsize::new(4096);
    /// The previous action of the signal.
    static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

    /// Installs the handler of SIGBUS. Only the first call has an effect.
    pub(super) fn catch() -> io::Result<()> {
        static CAUGHT: OnceLock<Result<(), i32>> = OnceLock::new();
        let caught = CAUGHT.get_or_init(|| install().map_err(|e| e.raw_os_error().unwrap_or(0)));
        caught.map_err(io::Error::from_raw_os_error)
    }

    fn install() -> io::Result<()> {
        // SAFETY: the call only reads a number.
        if let Ok(bytes @ 1..) = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }) {
            PAGE_BYTES.store(bytes, Ordering::Relaxed);
        }
        // SAFETY: all zeros is a value of this struct of numbers and pointers: the default action.
        let (mut before, mut ours): (libc::sigaction, libc::sigaction) =
            unsafe { (mem::zeroed(), mem::zeroed()) };
        let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) = handle;
        ours.sa_sigaction = handler as usize;
        // The handler runs on the thread's signal stack, if the thread has one of its own.
        ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        // SAFETY: the pointers are null or point to structs of this function; `handle` does only
        // what a handler may do.
        unsafe {
            if libc::sigaction(libc::SIGBUS, ptr::null(), &raw mut before) != 0 {
                return Err(io::Error::last_os_error());
            }
            // `BEFORE` is set before the handler is installed, because the handler reads `BEFORE`.
            let _ = BEFORE.set(before);
            if libc::sigaction(libc::SIGBUS, &raw const ours, ptr::null_mut()) != 0 {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(())
    }

    /// Handles SIGBUS. The handler takes no lock, allocates nothing, and uses only atomics and
    /// system calls.
    extern "C" fn handle(
        signal: libc::c_int,
        info: *mut libc::siginfo_t,
        _context: *mut libc::c_void,
    ) {
        // SAFETY: the system hands over a whole siginfo, which for this signal has an address.
        let (code, address) = unsafe { ((*info).si_code, (*info).si_addr() as usize) };
        let is_fault = code > 0;
        if is_fault && replace(address) {
            return;
        }
        // SAFETY: restores the previous action. Then a fault occurs again at once, and a SIGBUS
        // that a process has sent is raised again.
        unsafe {
            let before = BEFORE.get().map_or(ptr::null(), ptr::from_ref);
            libc::sigaction(signal, before, ptr::null_mut());
            if !is_fault {
                libc::raise(signal);
            }
        }
    }

    /// Replaces the unreadable page at `address` with zeros; returns false if the address belongs
    /// to no map.
    fn replace(address: usize) -> bool {
        let Some((slot, whole)) = mapped::find(address) else { return false };
        // The fault is counted before any thread can read a zero.
        let here = slot.note_fault();
        FAULTS.fetch_add(1, Ordering::SeqCst);
        let pages_max = slot.pages_max();
        let is_common = pages_max <= PAGES_EACH;
        let few = here < pages_max
            && (!is_common || FAULTS_COMMON.fetch_add(1, Ordering::SeqCst) < PAGES);
        let page_bytes = PAGE_BYTES.load(Ordering::Relaxed);
        let page = address & !(page_bytes - 1);
        let part = if few { page..page + page_bytes } else { whole };
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
        // SAFETY: the part lies within a map that the interrupted reader keeps open, and begins at
        // a page boundary. Other threads that read the part see its bytes change, as after a change
        // of the file. No reader relies on the bytes of a map staying the same.
        let made = unsafe {
            let at = ptr::with_exposed_provenance_mut(part.start);
            libc::mmap(at, part.len(), libc::PROT_READ, flags, -1, 0)
        };
        made != libc::MAP_FAILED
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hark_testkit::disk::scratch;

    #[test]
    fn a_file_that_is_shortened_under_its_map_reads_as_zeros_and_is_known_for_it() {
        let path = scratch("map");
        std::fs::write(&path, vec![7; 1 << 20]).unwrap();
        let (map, other) = (Map::open(&path, None).unwrap(), Map::open(&path, None).unwrap());
        assert_eq!(map.iter().map(|byte| usize::from(*byte)).sum::<usize>(), 7 << 20);
        assert!(!map.is_unreadable());
        let before = faults();
        std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(10_000).unwrap();
        assert_eq!((map[9_999], map[1 << 19]), (7, 0));
        assert!(map.is_unreadable() && !other.is_unreadable());
        assert!(faults() > before);
        // The map has more unreadable pages than the handler replaces individually.
        let left = map.iter().map(|byte| usize::from(*byte)).sum::<usize>() / 7;
        assert!(left <= 10_000, "{left} bytes of a map that was replaced");
        assert_eq!(other[5_000], 7, "what is there is still read");
        drop((map, other));
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn a_map_that_spares_readable_pages_loses_no_other() {
        const BAD: std::ops::Range<usize> = 20..120;
        let path = scratch("map-sparing");
        let whole = vec![7; 1 << 20];
        std::fs::write(&path, &whole).unwrap();
        let (sparing, other) = (Map::open(&path, None).unwrap(), Map::open(&path, None).unwrap());
        sparing.spare_readable_pages();
        let cut = |len| {
            let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
            file.set_len(len).unwrap();
        };
        cut(0);
        for map in [&sparing, &other] {
            assert_eq!(BAD.map(|page| usize::from(map[page * 4096])).sum::<usize>(), 0);
        }
        std::fs::write(&path, &whole).unwrap();
        assert_eq!((sparing[BAD.end * 4096], sparing[0]), (7, 7));
        assert_eq!((sparing.faults(), sparing[BAD.start * 4096]), (BAD.len() as u32, 0));
        assert_eq!(other[BAD.end * 4096], 0, "the other is replaced as a whole");
        drop((sparing, other));
        std::fs::remove_file(&path).unwrap();
    }
}
