//! Reads chunks of whole lines from a file or from stdin, compressed or not.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Cursor, Read};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::json::{RecordLines, is_end};

/// Minimum number of bytes of a chunk of a file. The size is large enough that sending a chunk to a
/// worker costs little, and small enough that all cores finish at about the same time.
const CHUNK_BYTES: usize = 256 << 10;
/// Maximum number of bytes per read.
const READ_BYTES: usize = 128 << 10;

/// Whole lines, in the order of the source.
#[derive(Debug, Default)]
pub(super) struct LineChunk {
    pub(super) bytes: Vec<u8>,
    /// Whether an overlong line, which was discarded, followed these lines. The end of that line is
    /// in the next chunk.
    pub(super) overlong: bool,
    /// Number of bytes of the source, as on disk, that were read up to the end of the chunk.
    pub(super) read_to: u64,
}

/// Reads chunks.
pub(super) struct LineSource {
    from: Box<dyn Read + Send>,
    read: Arc<AtomicU64>,
    /// Size on disk, if known.
    pub(super) size: Option<u64>,
    /// Whether the source is a pipe. The process that writes the pipe may wait until its records
    /// are stored.
    live: bool,
    line_bytes_max: usize,
    /// The beginning of a line whose end has not been read yet.
    rest: Vec<u8>,
    ended: bool,
}

impl LineSource {
    /// Opens `path`, or stdin for `-`. Nothing is read before the first call of
    /// [`LineSource::next`], since a pipe may be silent for long.
    pub(super) fn open(path: &Path, line_bytes_max: usize) -> io::Result<Self> {
        let (raw, size): (Box<dyn Read + Send>, _) = if path.as_os_str() == "-" {
            (Box::new(io::stdin()), None)
        } else {
            let file = File::open(path)?;
            let about = file.metadata()?;
            if about.is_dir() {
                return Err(io::Error::new(io::ErrorKind::IsADirectory, "it is a directory"));
            }
            (Box::new(file), about.is_file().then_some(about.len()))
        };
        let read = Arc::new(AtomicU64::new(0));
        let counted = CountingReader { from: raw, read: Arc::clone(&read) };
        Ok(Self {
            from: Box::new(RecordLines::new(DecompressedReader::new(counted))),
            read,
            size,
            live: size.is_none(),
            line_bytes_max,
            rest: Vec::new(),
            ended: false,
        })
    }

    /// Returns the next whole lines; `None` at the end.
    pub(super) fn next(&mut self) -> io::Result<Option<LineChunk>> {
        let mut bytes = std::mem::take(&mut self.rest);
        loop {
            if !self.ended {
                self.read_into(&mut bytes)?;
            }
            if self.ended {
                return Ok((!bytes.is_empty()).then(|| self.chunk(bytes, false)));
            }
            if !self.live && bytes.len() < CHUNK_BYTES {
                continue;
            }
            if let Some(end) = bytes.iter().rposition(|&byte| is_end(byte)) {
                self.rest = bytes[end + 1..].to_vec();
                bytes.truncate(end + 1);
                return Ok(Some(self.chunk(bytes, false)));
            }
            if bytes.len() > self.line_bytes_max {
                self.skip_line()?;
                return Ok(Some(self.chunk(Vec::new(), true)));
            }
        }
    }

    fn chunk(&self, bytes: Vec<u8>, overlong: bool) -> LineChunk {
        LineChunk { bytes, overlong, read_to: self.read.load(Ordering::Relaxed) }
    }

    fn read_into(&mut self, bytes: &mut Vec<u8>) -> io::Result<()> {
        let had = bytes.len();
        bytes.resize(had + READ_BYTES, 0);
        let got = self.from.read(&mut bytes[had..]);
        bytes.truncate(had + *got.as_ref().unwrap_or(&0));
        match got {
            Ok(0) => self.ended = true,
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Discards the current line, except its end, which is left for the next chunk.
    fn skip_line(&mut self) -> io::Result<()> {
        let mut bytes = Vec::new();
        while !self.ended {
            bytes.clear();
            self.read_into(&mut bytes)?;
            if let Some(end) = bytes.iter().position(|&byte| is_end(byte)) {
                self.rest = bytes[end..].to_vec();
                break;
            }
        }
        Ok(())
    }
}

/// The decompressed content of a source. The first read detects the compression by the first bytes.
struct DecompressedReader {
    raw: Option<CountingReader>,
    from: Box<dyn Read + Send>,
}

impl DecompressedReader {
    fn new(raw: CountingReader) -> Self {
        Self { raw: Some(raw), from: Box::new(io::empty()) }
    }
}

impl Read for DecompressedReader {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if let Some(raw) = self.raw.take() {
            self.from = decompressed(raw)?;
        }
        self.from.read(into)
    }
}

/// A reader that counts the bytes read.
struct CountingReader {
    from: Box<dyn Read + Send>,
    read: Arc<AtomicU64>,
}

impl Read for CountingReader {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let got = self.from.read(into)?;
        self.read.fetch_add(got as u64, Ordering::Relaxed);
        Ok(got)
    }
}

fn decompressed(mut raw: CountingReader) -> io::Result<Box<dyn Read + Send>> {
    let mut magic = Vec::new();
    // A pipe may return fewer bytes per read than the magic number has.
    (&mut raw).take(4).read_to_end(&mut magic)?;
    let start = Cursor::new(magic.clone());
    // A terminal can return more bytes after the end of its input, so a source that ends within the
    // magic number is not read again.
    let rest = raw.take(if magic.len() < 4 { 0 } else { u64::MAX });
    let whole = BufReader::with_capacity(READ_BYTES, start.chain(rest));
    Ok(match magic.as_slice() {
        [0x1f, 0x8b, ..] => Box::new(flate2::bufread::MultiGzDecoder::new(whole)),
        [0x28, 0xb5, 0x2f, 0xfd] => Box::new(zstd::stream::read::Decoder::with_buffer(whole)?),
        other if let Some(foreign) = foreign(other) => {
            return Err(io::Error::new(io::ErrorKind::Unsupported, foreign));
        }
        _ => Box::new(UnbufferedReader(whole)),
    })
}

/// File formats that contain no lines of text: the first bytes, a description, and the command that
/// turns such a file into lines.
const FOREIGN: [(&[u8], &str, &str); 7] = [
    (&[0xfd, b'7', b'z', b'X'], "compressed by xz", "xz -dc FILE | hark import"),
    (b"BZh", "compressed by bzip2", "bzip2 -dc FILE | hark import"),
    (&[0x04, 0x22, 0x4d, 0x18], "compressed by lz4", "lz4 -dc FILE | hark import"),
    (b"PK\x03\x04", "a zip archive", "unzip -p FILE | hark import"),
    (&[0xff, 0xfe], "text in UTF-16", "iconv -f UTF-16 -t UTF-8 FILE | hark import"),
    (&[0xfe, 0xff], "text in UTF-16", "iconv -f UTF-16 -t UTF-8 FILE | hark import"),
    (b"SQLi", "a database of SQLite", "the export of the program that wrote it"),
];

/// Describes a file of another format that begins with these bytes; `None` if the file may contain
/// lines.
fn foreign(magic: &[u8]) -> Option<String> {
    let (_, what, instead) = FOREIGN.iter().find(|(begin, ..)| magic.starts_with(begin))?;
    Some(format!("it is {what}, which is not read; instead: {instead}"))
}

/// A reader that returns the available bytes without waiting for a full buffer.
struct UnbufferedReader<R>(BufReader<R>);

impl<R: Read> Read for UnbufferedReader<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let ready = self.0.fill_buf()?;
        let taken = ready.len().min(into.len());
        into[..taken].copy_from_slice(&ready[..taken]);
        self.0.consume(taken);
        Ok(taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A reader that returns a few bytes at a time, like a pipe.
    struct Drip(Cursor<Vec<u8>>, usize);

    impl Read for Drip {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            let size = into.len().min(self.1);
            self.0.read(&mut into[..size])
        }
    }

    fn lines(text: &[u8], drip: usize, live: bool, line_bytes_max: usize) -> (Vec<u8>, usize) {
        let from = Box::new(Drip(Cursor::new(text.to_vec()), drip));
        let read = Arc::new(AtomicU64::new(0));
        let counted = CountingReader { from, read: Arc::clone(&read) };
        let from = Box::new(DecompressedReader::new(counted));
        let mut source = LineSource {
            from,
            read,
            size: None,
            live,
            line_bytes_max,
            rest: Vec::new(),
            ended: false,
        };
        let (mut bytes, mut overlong) = (Vec::new(), 0);
        while let Some(chunk) = source.next().unwrap() {
            bytes.extend_from_slice(&chunk.bytes);
            overlong += usize::from(chunk.overlong);
        }
        (bytes, overlong)
    }

    #[test]
    fn every_line_comes_once_whatever_the_pieces() {
        let text: Vec<u8> = (0..20_000)
            .flat_map(|n| format!("line {n} {}\n", "x".repeat(n % 97)).into_bytes())
            .collect();
        let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        io::Write::write_all(&mut gz, &text).unwrap();
        let gz = gz.finish().unwrap();
        let zst = zstd::encode_all(text.as_slice(), 1).unwrap();
        for bytes in [&text, &gz, &zst] {
            for drip in [1000, 1 << 20] {
                for live in [false, true] {
                    assert!(lines(bytes, drip, live, 1 << 20) == (text.clone(), 0));
                }
            }
        }
        assert_eq!(lines(b"no end", 1, true, 100), (b"no end".to_vec(), 0));
        assert_eq!(lines(b"", 1, true, 100), (Vec::new(), 0));
    }

    #[test]
    fn a_line_without_end_is_skipped_in_bounded_memory() {
        let mut text = b"first\n".to_vec();
        text.extend(vec![b'y'; 3 << 20]);
        text.extend(b"\nlast\n");
        assert_eq!(lines(&text, 1 << 20, false, 300_000), (b"first\n\nlast\n".to_vec(), 1));
    }
}
