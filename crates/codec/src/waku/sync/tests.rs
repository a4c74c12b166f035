//! Compares payloads with the bytes that other stores send.

use super::*;

const T: u64 = 1_700_000_000_000_000_000;
const END: MessagePosition = (T + 3_600_000_000_000, [0; 32]);

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    let byte = |two: &[u8]| u8::from_str_radix(std::str::from_utf8(two).unwrap(), 16).unwrap();
    digits.chunks(2).map(byte).collect()
}

fn writer() -> PayloadWriter {
    PayloadWriter::new(&["/waku/2/rs/1/3".into()], T, 1 << 20)
}

fn read(bytes: &[u8]) -> SyncPayload<'_> {
    SyncPayload::parse(bytes).unwrap().unwrap()
}

/// The content of a payload's only range.
fn said(bytes: &[u8]) -> RangeContent<'_> {
    let payload = read(bytes);
    assert_eq!(payload.pubsub_topics.iter().collect::<Vec<_>>(), ["/waku/2/rs/1/3"]);
    assert!(payload.content_topics.is_empty());
    let ranges: Vec<SyncRange<'_>> = payload.ranges().collect();
    assert_eq!((payload.start, payload.end, ranges.len()), (T, END.0, 1));
    assert_eq!(ranges[0].end, END);
    ranges[0].said
}

/// Each form of payload (a fingerprint, a list of messages, nothing) is written as the bytes that
/// other stores send, and is read from these bytes.
#[test]
fn payloads_have_the_bytes_that_other_stores_send() {
    let head = "01 0e2f77616b752f322f72732f312f33 00 8080a8b1e39fe7cb17 80c0e285e368";
    let (one, two, four) = ("11".repeat(32), "22".repeat(32), "44".repeat(32));
    let a = (T + 1_000_000_000, [0x11; 32]);
    let mut writer_of_print = writer();
    writer_of_print.fingerprint(END, &[0x33; 32]);
    let bytes = hex(&format!("{head} 01 {}", "33".repeat(32)));
    assert_eq!(writer_of_print.finish(), (bytes.clone(), true));
    assert_eq!(said(&bytes), RangeContent::Fingerprint([0x33; 32]));
    for (items, was_sent, bytes) in [
        (
            [a, (T + 2_000_000_005, [0x44; 32])],
            false,
            format!("{head} 02 02 8094938ee79fe7cb17 {one} 8594ebdc03 {four} 00"),
        ),
        (
            [a, (a.0, [0x22; 32])],
            true,
            format!("{head} 02 02 8094938ee79fe7cb17 {one} 00 {two} 01"),
        ),
    ] {
        let mut writer = writer();
        writer.items(END, &items, was_sent);
        let bytes = hex(&bytes);
        assert_eq!(writer.finish(), (bytes.clone(), true));
        let RangeContent::Items(read, as_sent) = said(&bytes) else { panic!("are items") };
        assert_eq!((read.iter().collect::<Vec<_>>(), as_sent), (items.to_vec(), was_sent));
    }
    let mut nothing = writer();
    nothing.skip(END);
    assert_eq!(nothing.finish(), (vec![0], false));
    assert_eq!(SyncPayload::parse(&[0]), Ok(None));
}

#[test]
fn ranges_that_are_skipped_one_after_the_other_become_one() {
    let skips = hex(&format!("00 00 8080a8b1e39fe7cb17 e807 00 d00f 00 01 01 {}", "aa".repeat(32)));
    let ends: Vec<u64> = read(&skips).ranges().map(|range| range.end.0 - T).collect();
    assert_eq!(ends, [1_000, 3_000, 3_001]);
    let mut writer = PayloadWriter::new(&[], T, 1 << 20);
    for range in read(&skips).ranges() {
        match range.said {
            RangeContent::Fingerprint(print) => writer.fingerprint(range.end, &print),
            _ => writer.skip(range.end),
        }
    }
    let merged = hex(&format!("00 00 8080a8b1e39fe7cb17 b817 00 01 01 {}", "aa".repeat(32)));
    assert_eq!(writer.finish(), (merged, true));
    // Ranges that end at the same time are distinguished by the hash.
    let same = hex(&format!("00 00 8080a8b1e39fe7cb17 00 03 000007 01 {}", "aa".repeat(32)));
    let range = read(&same).ranges().next().unwrap();
    assert_eq!((range.end.0, &range.end.1[..4]), (T, &[0, 0, 7, 0][..]));
    let mut writer = PayloadWriter::new(&[], T, 1 << 20);
    writer.fingerprint(range.end, &[0xaa; 32]);
    assert_eq!(writer.finish().0, same);
    // Two skipped ranges are not merged if the end of the next range includes a hash.
    let apart =
        hex(&format!("00 00 8080a8b1e39fe7cb17 05 00 00 01 07 00 01 01 {}", "aa".repeat(32)));
    let mut writer = PayloadWriter::new(&[], T, 1 << 20);
    for range in read(&apart).ranges() {
        match range.said {
            RangeContent::Fingerprint(print) => writer.fingerprint(range.end, &print),
            _ => writer.skip(range.end),
        }
    }
    assert_eq!(writer.finish().0, apart);
}

#[test]
fn what_does_not_fit_is_left_for_the_next_time() {
    let items: Vec<MessagePosition> = (0..100).map(|at| (T + at, [7; 32])).collect();
    let mut writer = PayloadWriter::new(&[], T, 4_000);
    writer.items((T + 100, [0; 32]), &items, false);
    writer.items((T + 200, [0; 32]), &items, false);
    writer.items((T + 300, [0; 32]), &vec![items[0]; 1_000], false);
    writer.fingerprint((T + 400, [0; 32]), &[1; 32]);
    let (bytes, _) = writer.finish();
    let said: Vec<_> = read(&bytes).ranges().map(|range| range.said).collect();
    let shape = matches!(
        said[..],
        [RangeContent::Items(..), RangeContent::Skip, RangeContent::Fingerprint(_)]
    );
    assert!(shape && bytes.len() <= 4_000, "{} bytes: {said:?}", bytes.len());
}

#[test]
fn what_is_no_payload_is_refused_wherever_it_is_cut() {
    let end = (T + 5, [0; 32]);
    let mut writer = PayloadWriter::new(&["p".into()], T, 1 << 20);
    writer.items(end, &[(T, [1; 32]), (T + 1, [0; 32])], false);
    let mut bytes = writer.finish().0;
    for cut in 2..bytes.len() {
        // A payload that is cut off between two ranges would be valid, so this payload has only one
        // range.
        let read = SyncPayload::parse(&bytes[..cut]);
        assert!(read.is_err() || read.unwrap().unwrap().ranges().count() == 0, "cut at {cut}");
    }
    let last = bytes.len() - 1;
    bytes[last] = 2;
    assert_eq!(SyncPayload::parse(&bytes), Err(SyncError::Kind));
    let many = [0, 0, 0, 1, 2, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1];
    assert_eq!(SyncPayload::parse(&many), Err(SyncError::Short));
    let mut writer = PayloadWriter::new(&[], T, 1 << 20);
    writer.items(end, &[(T, [1; 32]), (T, [1; 32])], false);
    assert_eq!(SyncPayload::parse(&writer.finish().0), Err(SyncError::Order));
    // A range that ends before it begins, and too many topics.
    assert_eq!(SyncPayload::parse(&[0, 0, 5, 0, 1, 9, 0, 0, 1, 7, 0]), Err(SyncError::Order));
    let mut topics = vec![0x81, 8];
    topics.resize(4_000, 0);
    assert_eq!(SyncPayload::parse(&topics), Err(SyncError::Topics));
}

#[test]
fn fingerprints_are_xor() {
    assert_eq!(fingerprint(&[]), [0; 32]);
    assert_eq!(fingerprint(&[(1, [0x11; 32]), (2, [0x22; 32])]), [0x33; 32]);
}
