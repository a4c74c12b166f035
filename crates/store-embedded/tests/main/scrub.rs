//! The slow check finds damage in data that no query reads, has damaged files rebuilt if the log is
//! undamaged, and reports no false fault.

use std::ops::ControlFlow;
use std::path::Path;
use std::time::Duration;

use hark_archive::{Id, LabelSet, Query, SearchError, Store, Write};
use hark_store_embedded::log::{self, LogFrame};
use hark_store_embedded::segment::SECTIONS;
use hark_store_embedded::{EmbeddedOptions, EmbeddedStore, rebuild};
use hark_testkit::wait::until;

use crate::support::{Fixture, everything, files, overwrite};

/// The offset and the length of a section in a segment (docs/format.md describes the table).
fn section(segment: &Path, number: usize) -> (u64, usize) {
    let bytes = std::fs::read(segment).expect("is read");
    let entry = &bytes[bytes.len() - (SECTIONS.len() * 20 + 32) + number * 20..];
    let number = |at: usize| u64::from_le_bytes(*entry[at..].first_chunk().expect("8 bytes"));
    (number(0), number(8) as usize)
}

const ID_HASHES: usize = 1;
const POSTINGS: usize = 4;

#[test]
fn a_sound_shelf_is_read_whole_and_nothing_is_found() {
    for seed in 0..12 {
        let mut fixture = Fixture::with_all_maintenance_due(seed);
        let store = fixture.open(fixture.options());
        for step in 0..6 {
            let scrubbed = store.scrub().expect("scrubs");
            let faults = (scrubbed.last_faults, scrubbed.repaired);
            assert_eq!(faults, (0, 0), "seed {seed}, step {step}");
            assert_eq!(scrubbed.passes, step + 1);
            fixture.write(&store, 25);
            if step == 3 {
                store.compact(&mut |_| {}).expect("compacts");
            }
        }
        // After this call no maintenance is due, so no job rewrites files during the pass, and the
        // figures match the pass.
        store.run_due_maintenance().expect("settles");
        let before = store.stats().scrub.expect("is there").read_bytes;
        let scrubbed = store.scrub().expect("scrubs");
        let read = scrubbed.read_bytes - before;
        let total = scrubbed.total_bytes;
        assert!(read > total * 9 / 10 && read <= total, "{read} bytes read of {total}");
        assert_eq!((store.stats().damaged, store.stats().damaged_files), (0, Vec::new()));
    }
}

#[test]
fn a_damaged_section_is_found_and_its_segment_made_again() {
    for number in [ID_HASHES, POSTINGS] {
        let fixture = Fixture::with_all_maintenance_due(5);
        let options = EmbeddedOptions { merge_fan_in: 1_000, ..fixture.options() };
        let store = fixture.open(options);
        store.run_due_maintenance().expect("settles");
        let segment = files(&fixture, "seg", "seg").remove(0);
        let (at, len) = section(&segment, number);
        overwrite(&segment, at, |bytes| bytes.fill(0), len.min(4096));
        let scrubbed = store.scrub().expect("scrubs");
        assert_eq!((scrubbed.last_faults, scrubbed.repaired), (1, 1), "section {number}");
        fixture.same_as_model(&store, "made again");
        let scrubbed = store.scrub().expect("scrubs");
        assert_eq!((scrubbed.last_faults, scrubbed.repaired), (0, 1), "section {number}");
        assert_eq!((store.stats().damaged, store.stats().damaged_files), (0, Vec::new()));
        drop(store);
        fixture.no_faults("made again");
    }
}

#[test]
fn a_damaged_frame_is_found_before_a_question_meets_it_and_only_told_of() {
    for wanted_put in [true, false] {
        let fixture = Fixture::with_all_maintenance_due(9);
        // A rewrite would remove the deletions from a log, so these options prevent rewrites.
        let options = EmbeddedOptions { rewrite_dead_share: 2.0, ..fixture.options() };
        let store = fixture.open(options.clone());
        store.run_due_maintenance().expect("settles");
        drop(store);
        // Find the last frame of this kind in a log that is not the last log.
        let mut logs = files(&fixture, "log", "log");
        logs.pop();
        let found = logs.iter().rev().find_map(|path| {
            let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
            let (number, generation) = name.split_once('-').expect("two numbers");
            let id = (number.parse().unwrap(), generation.parse().unwrap());
            let mut at = None;
            log::replay_whole(
                &hark_store_embedded::disk::RealDisk,
                path,
                id,
                &mut |offset, frame| match frame {
                    LogFrame::Put(_) if wanted_put => at = Some(offset),
                    LogFrame::Delete { .. } if !wanted_put => at = Some(offset),
                    _ => {}
                },
            )
            .expect("is whole");
            at.map(|at| (path.clone(), at))
        });
        let (path, at) = found.expect("such a frame");
        let store = fixture.open(options);
        overwrite(&path, u64::from(at) + 12, |bytes| bytes[0] ^= 1, 1);
        let records = store.stats().records;
        let scrubbed = store.scrub().expect("scrubs");
        assert_eq!((scrubbed.last_faults, scrubbed.repaired), (1, 0), "{path:?}");
        let stats = store.stats();
        assert_eq!(stats.damaged_files, [path.display().to_string()]);
        assert_eq!(stats.records, records);
        assert!(stats.damaged <= u64::from(wanted_put), "{stats:?}");
        if wanted_put {
            assert_eq!(everything(&store).len() as u64, records - stats.damaged);
        } else {
            fixture.same_as_model(&store, "no record is damaged");
        }
    }
}

#[test]
fn a_record_that_was_read_when_it_was_whole_is_not_given_once_it_is_known_to_be_damaged() {
    for is_sealed in [true, false] {
        let mut fixture = Fixture::with_all_maintenance_due(4);
        let store = fixture.open(fixture.options());
        store.run_due_maintenance().expect("settles");
        fixture.write(&store, 5);
        let all = everything(&store);
        // Choose the last byte of a live record.
        let logs = files(&fixture, "log", "log");
        let log = if is_sealed { &logs[0] } else { logs.last().expect("a log") };
        let bytes = std::fs::read(log).expect("is read");
        let place = |record: &&Vec<u8>| {
            let at = bytes.windows(record.len()).position(|part| part == record.as_slice())?;
            Some((at + record.len() - 1) as u64)
        };
        let at = all.iter().find_map(|record| place(&record)).expect("a record of this log");
        overwrite(log, at, |bytes| bytes[0] ^= 1, 1);
        let scrubbed = store.scrub().expect("scrubs");
        assert_eq!((scrubbed.last_faults, scrubbed.repaired), (1, 0));
        assert_eq!(everything(&store).len(), all.len() - 1, "sealed: {is_sealed}");
        let stats = store.stats();
        assert_eq!((stats.damaged, stats.damaged_files), (1, vec![log.display().to_string()]));
    }
}

#[test]
fn damaged_addresses_are_found_and_made_again_at_once() {
    let mut fixture = Fixture::with_all_maintenance_due(8);
    let store = fixture.open(fixture.options());
    store.run_due_maintenance().expect("settles");
    fixture.same_as_model(&store, "sound");
    let segments = store.stats().segments;
    // After the first 8 bytes, the file has 8 bytes for each row.
    overwrite(&files(&fixture, "seg", "addr")[0], 8, <[u8]>::reverse, 160);
    let scrubbed = store.scrub().expect("scrubs");
    assert_eq!((scrubbed.last_faults, scrubbed.repaired), (1, 1));
    fixture.same_as_model(&store, "made again");
    let scrubbed = store.scrub().expect("scrubs");
    assert_eq!((scrubbed.last_faults, scrubbed.repaired), (0, 1));
    let stats = store.stats();
    assert_eq!((stats.segments, stats.damaged_files), (segments, Vec::new()));
    fixture.write(&store, 30);
    store.compact(&mut |_| {}).expect("compacts");
    fixture.same_as_model(&store, "rewritten");
    drop(store);
    fixture.no_faults("made again");
    let store = fixture.open(fixture.options());
    fixture.same_as_model(&store, "opened again");
}

#[test]
fn the_background_thread_reads_everything_again_and_again() {
    let fixture = Fixture::with_all_maintenance_due(2);
    let options = EmbeddedOptions {
        background: true,
        scrub_within: Some(Duration::from_millis(5)),
        ..fixture.options()
    };
    let store = fixture.open(options);
    let passes = || store.stats().scrub.expect("is there").passes;
    until("three passes end", || passes() >= 3);
    let scrubbed = store.stats().scrub.expect("is there");
    assert_eq!((scrubbed.last_faults, scrubbed.repaired), (0, 0));
    assert!(scrubbed.last_pass_age.is_some());
}

/// Stores records twice, by damaging the index of their ids in between.
fn store_twice(fixture: &mut Fixture) -> (EmbeddedStore, u64) {
    let store = fixture.open(EmbeddedOptions { merge_fan_in: 1_000, ..fixture.options() });
    store.run_due_maintenance().expect("settles");
    let all = everything(&store);
    // The bytes are not zeros, because zeros would be detected as a hole.
    for segment in files(fixture, "seg", "seg") {
        let (at, len) = section(&segment, ID_HASHES);
        overwrite(&segment, at, |bytes| bytes.fill(0xff), len);
    }
    let again: Vec<Write> = all.iter().map(|bytes| Write::Put(bytes.as_slice().into())).collect();
    store.commit(&again).expect("commits");
    let twice = store.stats().records - all.len() as u64;
    (store, twice)
}

#[test]
fn a_rebuild_leaves_one_of_each_record_that_was_stored_twice() {
    for has_manifest in [true, false] {
        let mut fixture = Fixture::with_all_maintenance_due(6);
        let (store, twice) = store_twice(&mut fixture);
        assert!(twice > 20, "{twice} records are stored twice");
        drop(store);
        if !has_manifest {
            std::fs::remove_file(fixture.dir().join("MANIFEST")).expect("is removed");
        }
        let rebuilt = rebuild(&fixture.dir(), &fixture.options(), &mut |_| {}).expect("is rebuilt");
        assert_eq!((rebuilt.doubles, rebuilt.manifest), (twice, !has_manifest));
        fixture.no_faults("rebuilt");
        let store = fixture.open(fixture.options());
        fixture.same_as_model(&store, "rebuilt");
        drop(store);
        let again = rebuild(&fixture.dir(), &fixture.options(), &mut |_| {}).expect("is rebuilt");
        assert_eq!(again.doubles, 0);
    }
}

#[test]
fn a_record_of_the_last_log_that_rots_is_left_out_before_and_after_it_was_read() {
    for was_read in [false, true] {
        let mut fixture = Fixture::new(31);
        let store = fixture.open(EmbeddedOptions { seal_records: 1_000, ..fixture.options() });
        fixture.write(&store, 40);
        let whole = everything(&store);
        if !was_read {
            // Make the store forget that the records have been verified.
            store.recheck_files();
        }
        let log = files(&fixture, "log", "log").pop().expect("a log");
        let bytes = std::fs::read(&log).expect("is read");
        let rotten = whole[7].clone();
        let at = bytes.windows(rotten.len()).position(|part| part == rotten).expect("is there");
        overwrite(&log, (at + rotten.len() / 2) as u64, |byte| byte[0] ^= 0x10, 1);
        if was_read {
            // Simulate the regular check.
            store.recheck_files();
        }
        let left = everything(&store);
        assert_eq!(left.len(), whole.len() - 1, "read before: {was_read}");
        assert!(left.iter().all(|record| whole.contains(record) && *record != rotten));
        assert_eq!(store.stats().damaged, 1);
    }
}

#[test]
fn a_file_that_is_shortened_within_its_last_page_is_noticed_and_made_again() {
    for ending in ["seg", "addr"] {
        let fixture = Fixture::with_all_maintenance_due(5);
        let store = fixture.open(fixture.options());
        store.run_due_maintenance().expect("settles");
        let path = files(&fixture, "seg", ending).remove(0);
        let len = std::fs::metadata(&path).expect("is there").len();
        let file = std::fs::OpenOptions::new().write(true).open(&path).expect("opens");
        file.set_len(len - len.min(4096) / 4).expect("is shortened");
        store.recheck_files();
        let question = hark_archive::Query::default();
        let refused = store
            .search(&question)
            .expect("begins")
            .slice(u64::MAX, &mut |_| std::ops::ControlFlow::Continue(()));
        assert!(refused.is_err(), "a question that needs {ending} is not answered without it");
        store.run_due_maintenance().expect("settles");
        fixture.same_as_model(&store, "made again");
        drop(store);
        fixture.no_faults("made again");
    }
}

#[test]
fn a_hole_in_the_ids_of_a_segment_is_noticed_before_anything_is_stored_twice() {
    const ID_ROWS: usize = 2;
    const ID_FILTER: usize = 3;
    for number in [ID_HASHES, ID_ROWS, ID_FILTER] {
        let mut fixture = Fixture::new(17);
        let options = EmbeddedOptions { seal_records: 1_500, ..fixture.options() };
        let store = fixture.open(options);
        let batch: Vec<Write> = (0..3_300).map(|_| Write::Put(fixture.world.record())).collect();
        for part in batch.chunks(300) {
            store.commit(part).expect("commits");
            fixture.model.commit(part).expect("commits");
        }
        store.run_due_maintenance().expect("settles");
        let segment = files(&fixture, "seg", "seg").remove(0);
        let (at, len) = section(&segment, number);
        // A multiple of eight bytes, like a page.
        let hole = (len / 2 / 8 * 8).min(4_096);
        overwrite(&segment, at + len as u64 / 32 * 8, |bytes| bytes.fill(0), hole);
        let mut put_off = 0;
        for part in batch.chunks(300) {
            if let Err(error) = store.commit(part) {
                assert!(matches!(error, hark_archive::CommitError::Unavailable(_)), "{error}");
                put_off += 1;
                store.run_due_maintenance().expect("the segment is made again");
                store.commit(part).expect("commits");
            }
            fixture.model.commit(part).expect("commits");
        }
        // The filter only saves searches, so a hole in the filter changes no result.
        assert_eq!(put_off, usize::from(number != ID_FILTER), "section {number}");
        fixture.same_as_model(&store, "made again");
    }
}

#[test]
fn a_hole_in_times_kinds_or_postings_is_noticed_by_the_first_question_that_reads_it() {
    const TIMES: usize = 0;
    const KINDS: usize = 6;
    for number in [TIMES, KINDS, POSTINGS] {
        let mut fixture = Fixture::new(23);
        let options = EmbeddedOptions { seal_records: 2_000, ..fixture.options() };
        let store = fixture.open(options);
        for _ in 0..12 {
            fixture.write(&store, 300);
        }
        store.run_due_maintenance().expect("settles");
        let segment = files(&fixture, "seg", "seg").remove(0);
        let (start, len) = section(&segment, number);
        let end = start + len as u64;
        // The part of a page that belongs to the section.
        let at = start.next_multiple_of(4_096);
        assert!(at < end, "section {number} is long enough");
        overwrite(&segment, at, |bytes| bytes.fill(0), (end - at).min(4_096) as usize);
        let all = everything(&fixture.model);
        let mut noticed = 0;
        for record in all.iter().step_by(5) {
            let record = hark_archive::Record::new(record).expect("a record");
            for query in questions(&record) {
                let expected = ids(&fixture.model, &query).expect("the model answers");
                let Ok(answer) = ids(&store, &query) else {
                    noticed += 1;
                    store.run_due_maintenance().expect("the segment is made again");
                    assert_eq!(ids(&store, &query).expect("answers"), expected);
                    continue;
                };
                assert_eq!(answer, expected, "section {number}, {query:?}");
            }
        }
        assert_eq!(noticed, 1, "section {number}");
        assert_eq!(store.stats().damaged_files, Vec::<String>::new());
        drop(store);
        fixture.no_faults("made again");
    }
}

/// Questions that find a record through each of its lists, and by its time.
fn questions(record: &hark_archive::Record<'_>) -> Vec<Query> {
    let time = record.time();
    let mut all = vec![
        Query { from: time, to: time, ..Query::default() },
        Query { kinds: Some(vec![record.kind()]), ..Query::default() },
    ];
    let authors = record.author().map(|author| vec![*author]);
    all.push(Query { authors, kinds: Some(vec![record.kind()]), ..Query::default() });
    all.extend(record.labels().map(|(name, value)| {
        let values = vec![value.into()];
        Query { labels: vec![LabelSet { name, values }], ..Query::default() }
    }));
    all
}

fn ids(store: &dyn Store, query: &Query) -> Result<Vec<Id>, SearchError> {
    let mut found = Vec::new();
    store.search(query)?.slice(u64::MAX, &mut |record| {
        found.push(*record.id());
        ControlFlow::Continue(())
    })?;
    Ok(found)
}
