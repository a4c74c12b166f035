//! Compares a head and its posting lists with a model while rows are inserted.

use hark_archive::Id;
use hark_archive::query::prepared::TermMap as _;
use hark_archive::query::source::Source;
use hark_codec::record::{self, LabelPosition};
use hark_testkit::random::Random;

use super::*;

const SECRET: [u8; 16] = [7; 16];

/// Makes records with few times, kinds and labels, and with ids that share their first bytes. So
/// rows are inserted at any position of a list.
fn records(count: usize, seed: u64) -> Vec<Vec<u8>> {
    let mut random = Random::new(seed);
    let one = |at: usize| {
        let mut id: Id = random.bytes();
        id[..7].fill(0);
        let late = if random.once_in(3) { random.below(400) } else { 0 };
        let head = record::RecordHeader {
            id,
            time: 10_000 + (at / 4) as u64 - late as u64,
            author: Some([random.below(3) as u8; 32]),
            kind: if random.once_in(2) { 1 } else { random.below(30) as u32 },
            expires: None,
        };
        let value = [b'a' + random.below(5) as u8];
        let mut out = Vec::new();
        record::write(&mut out, &head, b"", [(b't', LabelPosition::Bytes(&value))].into_iter());
        out
    };
    (0..count).map(one).collect()
}

/// Collects the rows of all posting lists of these terms, and checks the order of each list.
fn gather(view: &HeadView, terms: &[u64], kinds: Option<&[u32]>) -> Vec<u32> {
    let mut rows = Vec::new();
    view.terms(terms, kinds, &mut |_, list| {
        let of_list: Vec<u32> = (0..list.len()).map(|index| list.row(index)).collect();
        assert!(of_list.is_sorted_by_key(|&row| view.head().table.sort_key(row)), "newest first");
        rows.extend(of_list);
        std::ops::ControlFlow::Continue(())
    });
    rows.retain(|&row| row < view.rows);
    rows.sort_unstable();
    rows
}

fn look(head: &Arc<Head>, records: &[Vec<u8>], terms: &TermHasher, random: &mut Random) -> usize {
    let view = HeadView::published(head);
    let seen = view.rows as usize;
    let author = [random.below(3) as u8; 32];
    let kind = random.below(30) as u32;
    let value = [b'a' + random.below(5) as u8];
    let expected = |wanted: &dyn Fn(&Record<'_>) -> bool| -> Vec<u32> {
        let view = |bytes: &'_ [u8]| Record::new(bytes).is_ok_and(|record| wanted(&record));
        (0u32..).zip(&records[..seen]).filter(|(_, r)| view(r)).map(|(row, _)| row).collect()
    };
    let by_author = gather(&view, &[terms.author(&author)], None);
    assert_eq!(by_author, expected(&|record| record.author() == Some(&author)));
    let labelled = gather(&view, &[terms.label(b't', &value)], Some(&[kind]));
    let has = |record: &Record<'_>| record.labels().any(|label| label == (b't', &value[..]));
    assert_eq!(labelled, expected(&|record| record.kind() == kind && has(record)));
    let mut every = 0;
    view.every(&mut |list| every += (0..list.len()).filter(|&at| list.row(at) < view.rows).count());
    assert_eq!(every, seen);
    for (row, bytes) in records[..seen].iter().enumerate().rev().take(50) {
        let id = Record::new(bytes).expect("sound").id();
        assert_eq!(view.find(id, terms.id(id)), Some(row as u32));
    }
    seen
}

#[test]
fn readers_find_every_published_row_in_order_while_rows_are_inserted() {
    let records = records(6_000, 3);
    let terms = TermHasher::new(&SECRET, &crate::EmbeddedOptions::default());
    // The head is sized for fewer rows, so its tables must grow.
    let head = Arc::new(Head::new(Arc::new(Log::empty()), terms.clone(), 0, 500));
    std::thread::scope(|threads| {
        threads.spawn(|| {
            let mut random = Random::new(5);
            while look(&head, &records, &terms, &mut random) < records.len() {}
        });
        let mut scratch = crate::term::TermBuffers::default();
        for batch in records.chunks(7) {
            for bytes in batch {
                let record = Record::new(bytes).expect("sound");
                head.insert(&record, 0, &mut scratch);
            }
            head.publish();
        }
    });
    let mut random = Random::new(6);
    for _ in 0..200 {
        look(&head, &records, &terms, &mut random);
    }
}
