//! The values of a label, each with its number of live records. A segment has the values in a
//! section of its file. For a head, the values are read from its records, which are usually still
//! in the system's cache.

use hark_archive::query::prepared::TermMap as _;
use hark_archive::query::source::Source as _;
use hark_archive::store::label_values::count;

use super::shelf_view::ShelfView;
use crate::head::HeadView;
use crate::merged::merged;
use crate::segment::SegmentSection;
use crate::segment::opened::Segment;
use crate::term::TermHasher;

/// Values, ascending, each with its number of records.
type Counted<'a> = Box<dyn Iterator<Item = (&'a [u8], u64)> + 'a>;

/// Passes the values of label `name` in a view to `each`, ascending.
pub(crate) fn label_values(
    view: &ShelfView,
    terms: &TermHasher,
    name: u8,
    each: &mut dyn FnMut(&[u8], u64),
) {
    let heads: Vec<HeadView> = view.heads().map(HeadView::published).collect();
    let segments = view.segments.iter().map(|segment| of_segment(segment, terms, name));
    let heads = heads.iter().map(|head| of_head(head, name));
    let parts: Vec<Counted<'_>> = segments.chain(heads).collect();
    let mut all = merged(parts).peekable();
    while let Some((value, mut count)) = all.next() {
        while let Some((_, more)) = all.next_if(|(other, _)| *other == value) {
            count += more;
        }
        each(value, count);
    }
}

fn of_head(head: &HeadView, name: u8) -> Counted<'_> {
    let live = (0..head.rows() as u32).filter(|&row| !head.is_dead(row));
    Box::new(count(live.filter_map(|row| head.record(row)), name).into_iter())
}

fn of_segment<'a>(segment: &'a Segment, terms: &'a TermHasher, name: u8) -> Counted<'a> {
    let (file, dead) = (&segment.file, &segment.dead);
    if !file.listed().contains(&name) {
        // The segment does not list the label yet. Maintenance will replace this segment by a
        // segment that lists the label.
        let live = (0..file.rows).filter(|&row| !dead.dead.get(row));
        return Box::new(count(live.filter_map(|row| segment.record(row)), name).into_iter());
    }
    let all_live = dead.rows.count() == 0;
    let live = move |value: &[u8]| {
        let lists = file.term(terms.label(name, value)).map(|entry| file.list(entry));
        let live = |list: std::ops::Range<u32>| {
            let count_live = || list.clone().filter(|&at| !dead.dead.get(file.posting(at))).count();
            if all_live { list.len() } else { count_live() }
        };
        lists.map(live).sum::<usize>() as u64
    };
    // A wrong byte can hide one value, or all later values.
    if file.is_damaged(SegmentSection::Values) {
        file.note_lost();
    }
    let values = file.values().filter(move |(other, _)| *other == name);
    let counted = values.map(move |(_, value)| (value, live(value)));
    Box::new(counted.filter(|(_, count)| *count > 0))
}
