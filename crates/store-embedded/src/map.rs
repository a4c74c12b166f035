//! Files mapped into memory for reading. The only place of this crate with `unsafe`.
//!
//! What is mapped does not change: segments are written once, and of a log only bytes that are
//! already written are looked at. Nobody but Hark may shorten a file of a shelf while it is open.
//!
//! # Pages that cannot be read
//!
//! Where somebody has done so all the same, or the disk cannot read a sector, there are no bytes to
//! give: the system sends SIGBUS, which ends the process. To read by calls instead of maps would make
//! an error of it, but such a call for each record, and for each step of a search in an index, is many
//! times slower, and whether a page can be read is known only when it is read. So the signal is
//! caught ([`on_bus_error`]): it puts a page of zeros in the place of the one that is missing, counts
//! that ([`faults`], [`Map::is_unreadable`]), and the read goes on. Nothing believes the zeros:
//!
//! - who answers a question compares [`faults`] before and after; if it has grown by a file of the
//!   shelf, the answer is an error (`suspect.rs`);
//! - a segment of which a page is missing is asked no more: questions that would need it are errors,
//!   until it is made anew from the log;
//! - a record in a log of which a page is missing is checked by its checksum each time it is read;
//! - replaying, merging and rewriting end with an error.
//!
//! Maps are few and live long; those that are open are in a list that the handler can walk
//! ([`crate::mapped`]). A fault anywhere else goes to whom SIGBUS belonged to before, as if this were not
//! here. A map that loses many pages is replaced as a whole, since the system bounds how many pieces
//! memory may be in.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::ops::{Deref, Range};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use memmap2::{Advice, Mmap, MmapOptions};

use crate::mapped::Registered;

/// A mapped file. Reads in no particular order are expected.
#[derive(Default)]
pub struct Map(Option<Mapped>);

/// In this order they go: an address that is not mapped any more must not be taken for one that is.
struct Mapped {
    registered: Registered,
    bytes: Mmap,
}

impl Mapped {
    fn new(bytes: Mmap, advice: Advice) -> io::Result<Self> {
        #[cfg(target_os = "linux")]
        bus::catch()?;
        bytes.advise(advice)?;
        let start = bytes.as_ptr() as usize;
        Ok(Self { registered: Registered::new(&(start..start + bytes.len())), bytes })
    }
}

impl Map {
    /// Maps a file to be read once, from front to back.
    pub fn open_sequential(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        if file.metadata()?.len() == 0 {
            return Ok(Self(None));
        }
        // SAFETY: as below; the length is that of the file now.
        let map = unsafe { MmapOptions::new().map(&file)? };
        Ok(Self(Some(Mapped::new(map, Advice::Sequential)?)))
    }

    /// Maps a file, `reserve` bytes of it even if it is shorter now: the bytes behind its end may be
    /// looked at once it has grown.
    pub fn open(path: &Path, reserve: Option<usize>) -> io::Result<Self> {
        let file = File::open(path)?;
        let written = file.metadata()?.len() as usize;
        // Not even the first page of an empty file may be looked at.
        if written == 0 {
            return Ok(Self(None));
        }
        let len = reserve.unwrap_or(written);
        // SAFETY: the file is only ever appended to (a log) or never written again (a segment), and
        // callers stay below the length that they know to be written.
        let map = unsafe { MmapOptions::new().len(len).map(&file)? };
        Ok(Self(Some(Mapped::new(map, Advice::Random)?)))
    }

    /// Whether a part of the file could not be read when it was looked at; there are zeros then.
    #[inline]
    pub fn is_unreadable(&self) -> bool {
        self.faults() > 0
    }

    /// Reads of it that found no bytes.
    #[inline]
    pub fn faults(&self) -> u32 {
        if faults() == 0 {
            return 0;
        }
        self.0.as_ref().map_or(0, |map| map.registered.slot().faults())
    }

    /// Has a part of the file read from the disk, in large pieces and without waiting for them: for what is
    /// about to be looked at whole.
    pub fn read_ahead(&self, part: Range<usize>) {
        if let Some(Mapped { bytes, .. }) =
            self.0.as_ref().filter(|map| part.end <= map.bytes.len())
        {
            // Only a hint: without it the same bytes come page by page.
            let _ = bytes.advise_range(Advice::WillNeed, part.start, part.len());
        }
    }

    /// Has the first bytes at `at` brought closer, about as many as a record has as a rule, without
    /// waiting for them.
    #[inline]
    pub fn prefetch(&self, at: usize) {
        #[cfg(target_arch = "x86_64")]
        if let Some(bytes) = self.get(at..).filter(|bytes| bytes.len() >= LINES * 64) {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            for line in 0..LINES {
                // SAFETY: the address lies within `bytes`; and a prefetch of any address changes
                // nothing and faults nowhere.
                unsafe { _mm_prefetch::<_MM_HINT_T0>(bytes.as_ptr().add(line * 64).cast()) };
            }
        }
    }
}

/// Cache lines of a record that are prefetched.
#[cfg(target_arch = "x86_64")]
const LINES: usize = 12;

impl Deref for Map {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.0.as_ref().map(|map| &*map.bytes).unwrap_or_default()
    }
}

/// Reads of all maps that found no bytes.
static FAULTS: AtomicU64 = AtomicU64::new(0);

/// How many reads of maps have found no bytes, and got zeros, since the process began. What was read
/// before this is called has been counted.
#[inline]
pub(crate) fn faults() -> u64 {
    // Reads before it must not be moved behind it.
    fence(Ordering::Acquire);
    FAULTS.load(Ordering::Acquire)
}

/// What is said of a file that could not be read.
pub(crate) fn unreadable() -> io::Error {
    io::Error::other("a part of it could not be read: it was shortened, or the disk fails")
}

/// Catching SIGBUS.
#[cfg(target_os = "linux")]
mod bus {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::{io, mem, ptr};

    use super::FAULTS;
    use crate::mapped;

    /// Pages of one map that are replaced one by one.
    const PAGES_EACH: u32 = 16;
    /// Pages of all maps that are.
    const PAGES: u64 = 4096;

    static PAGE_BYTES: AtomicUsize = AtomicUsize::new(4096);
    /// To whom the signal belonged before.
    static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

    /// Catches the signal from now on.
    pub(super) fn catch() -> io::Result<()> {
        static CAUGHT: OnceLock<Result<(), i32>> = OnceLock::new();
        let caught = CAUGHT.get_or_init(|| install().map_err(|e| e.raw_os_error().unwrap_or(0)));
        caught.map_err(io::Error::from_raw_os_error)
    }

    fn install() -> io::Result<()> {
        // SAFETY: asks for a number.
        if let Ok(bytes @ 1..) = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }) {
            PAGE_BYTES.store(bytes, Ordering::Relaxed);
        }
        // SAFETY: all zeros is a value of this struct of numbers and pointers: the default action.
        let (mut before, mut ours): (libc::sigaction, libc::sigaction) =
            unsafe { (mem::zeroed(), mem::zeroed()) };
        let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) = handle;
        ours.sa_sigaction = handler as usize;
        // On the stack for signals, where the thread has one.
        ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        // SAFETY: both point to structs of this function; the handler does only what one may do.
        unsafe {
            if libc::sigaction(libc::SIGBUS, ptr::null(), &raw mut before) != 0 {
                return Err(io::Error::last_os_error());
            }
            // Before ours is in place, which looks at it.
            let _ = BEFORE.set(before);
            if libc::sigaction(libc::SIGBUS, &raw const ours, ptr::null_mut()) != 0 {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(())
    }

    /// Takes no lock and allocates nothing; all that it calls are atomics and system calls.
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
        // SAFETY: gives the signal back; a fault comes again at once, what was sent is sent again.
        unsafe {
            let before = BEFORE.get().map_or(ptr::null(), ptr::from_ref);
            libc::sigaction(signal, before, ptr::null_mut());
            if !is_fault {
                libc::raise(signal);
            }
        }
    }

    /// Puts zeros in the place of what could not be read; false if that is no map's.
    fn replace(address: usize) -> bool {
        let Some((slot, whole)) = mapped::find(address) else { return false };
        // Counted before anybody can see a zero.
        let (here, all) = (slot.note_fault(), FAULTS.fetch_add(1, Ordering::SeqCst));
        let page_bytes = PAGE_BYTES.load(Ordering::Relaxed);
        let page = address & !(page_bytes - 1);
        let few = here < PAGES_EACH && all < PAGES;
        let part = if few { page..page + page_bytes } else { whole };
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
        // SAFETY: the part lies within a map that its reader, which this interrupts, keeps open, and
        // begins with a page of it. Whoever else reads there sees bytes change as they do when the
        // file changes, and counts on no more than on that.
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
        // More pages than are replaced one by one.
        let left = map.iter().map(|byte| usize::from(*byte)).sum::<usize>() / 7;
        assert!(left <= 10_000, "{left} bytes of a map that was replaced");
        assert_eq!(other[5_000], 7, "what is there is still read");
        drop((map, other));
        std::fs::remove_file(&path).unwrap();
    }
}
