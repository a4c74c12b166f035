//! A log. Any bytes are read without a panic, and written frames are read back. Damage may hide the
//! last batches, but adds no frames.

use std::fs;

use hark_store_embedded::disk::RealDisk;
use hark_store_embedded::log::{FRAME, HEADER, LogEnd, LogError, LogFrame, header, replay};

const SALT: u32 = 0x5a17_5a17;

/// Panics if a property does not hold.
///
/// The first byte selects the meaning of the other bytes. With 0, they are the bytes of a log after
/// its header. With 1, they are a whole file. Otherwise, they are frames to write, followed by
/// changes to make to the file.
pub fn check(bytes: &[u8]) {
    let Some((mode, rest)) = bytes.split_first() else { return };
    match mode {
        0 => raw(&[&header(3, 0, SALT), rest].concat()),
        1 => raw(rest),
        _ => written(rest),
    }
}

fn raw(file: &[u8]) {
    let Ok((frames, end)) = read(file) else { return };
    assert!(HEADER <= end.good && end.good <= end.len && end.len == file.len() as u64);
    // A file that is cut at the end of its good part reads the same.
    let (again, whole) = read(&file[..end.good as usize]).expect("good bytes");
    assert_eq!((frames, end.good), (again, whole.good));
    assert_eq!(whole.good, whole.len);
}

fn written(bytes: &[u8]) {
    let (commands, harm) = bytes.split_at(bytes.len() / 2);
    let mut file = header(3, 0, SALT).to_vec();
    let mut expected = Vec::new();
    // The number of frames up to the end of each batch.
    let mut batches = vec![(file.len(), 0)];
    for batch in commands.chunks(7) {
        let mut inner = Vec::new();
        let start = file.len() + LogFrame::BATCH_BYTES;
        for &command in batch {
            let body = [command; 40];
            let frame = if command % 3 == 0 {
                LogFrame::Delete { id: [command; 32], log: u32::from(command) }
            } else {
                LogFrame::Put(&body[..usize::from(command % 40)])
            };
            expected.push(((start + inner.len()) as u32, format!("{frame:?}")));
            frame.write(SALT, &mut inner);
        }
        LogFrame::Batch(inner.len() as u32).write(SALT, &mut file);
        file.extend_from_slice(&inner);
        batches.push((file.len(), expected.len()));
    }
    let (frames, end) = read(&file).expect("what was written");
    assert_eq!((&frames, end.good), (&expected, end.len));

    // Each change has two bytes for the place and one byte for the value. A remaining byte cuts the
    // file.
    let mut first_harmed = file.len();
    for change in harm.chunks_exact(3) {
        let at = usize::from(u16::from_le_bytes([change[0], change[1]])) % file.len();
        if at >= HEADER as usize && change[2] != 0 {
            file[at] ^= change[2];
            first_harmed = first_harmed.min(at);
        }
    }
    if let [.., cut] = *harm.chunks_exact(3).remainder() {
        file.truncate(file.len().saturating_sub(usize::from(cut)).max(HEADER as usize));
        first_harmed = first_harmed.min(file.len());
    }
    // Two changes of the same byte may undo each other. Then more frames than this number are
    // undamaged.
    let sure = batches.iter().rev().find(|(end, _)| *end <= first_harmed).map_or(0, |(_, n)| *n);
    match read(&file) {
        Ok((frames, end)) => {
            assert!(frames.len() >= sure);
            assert_eq!(frames[..], expected[..frames.len()], "nothing is made up");
            assert!(end.good <= end.len);
        }
        Err(LogError::Damaged { offset, .. }) => {
            assert!(batches.iter().any(|(end, _)| *end as u64 == offset));
        }
        Err(error) => panic!("{error}"),
    }
}

type Frames = Vec<(u32, String)>;

fn read(file: &[u8]) -> Result<(Frames, LogEnd), LogError> {
    let mut frames = Vec::new();
    let path = super::scratch("log");
    fs::write(&path, file).expect("a temporary file");
    let end = replay(&RealDisk, &path, (3, 0), &mut |offset, frame| {
        if let LogFrame::Put(body) = frame {
            let at = offset as usize + FRAME;
            assert_eq!(body, &file[at..at + body.len()]);
        }
        frames.push((offset, format!("{frame:?}")));
    });
    fs::remove_file(&path).expect("ours");
    Ok((frames, end?))
}
