//! Files mapped into memory for reading. The only place of this crate with `unsafe`.
//!
//! What is mapped does not change: segments are written once, and of a log only bytes that are
//! already written are looked at. Nobody but Hark may shorten a file of a shelf while it is open.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::ops::{Deref, Range};
use std::path::Path;

use memmap2::{Advice, Mmap, MmapOptions};

/// A mapped file. Reads in no particular order are expected.
#[derive(Default)]
pub struct Map(Option<Mmap>);

impl Map {
    /// Maps a file to be read once, from front to back.
    pub fn open_sequential(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        if file.metadata()?.len() == 0 {
            return Ok(Self(None));
        }
        // SAFETY: as below; the length is that of the file now.
        let map = unsafe { MmapOptions::new().map(&file)? };
        map.advise(Advice::Sequential)?;
        Ok(Self(Some(map)))
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
        map.advise(Advice::Random)?;
        Ok(Self(Some(map)))
    }

    /// Has a part of the file read from the disk, in large pieces and without waiting for them: for what is
    /// about to be looked at whole.
    pub fn read_ahead(&self, part: Range<usize>) {
        if let Some(map) = self.0.as_ref().filter(|map| part.end <= map.len()) {
            // Only a hint: without it the same bytes come page by page.
            let _ = map.advise_range(Advice::WillNeed, part.start, part.len());
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
        self.0.as_deref().unwrap_or_default()
    }
}
