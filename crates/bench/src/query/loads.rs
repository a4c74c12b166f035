//! The loads of the measurement: the requests of each shape, for each connection.

use std::sync::Arc;

use crate::random::Random;
use crate::report::BenchReport;
use crate::requests::{RequestFrames, request};
use crate::sample::EventSample;
use crate::shapes::QueryShape;

/// Maximum number of pages for each depth.
const PAGES: usize = 20;
/// The name of the load that mixes all shapes.
pub(super) const MIXED: &str = "all mixed";

/// The requests of a shape, for each connection.
pub(super) struct ShapeRequests {
    pub(super) name: String,
    pub(super) may_be_empty: bool,
    pub(super) requests: Vec<Arc<Vec<RequestFrames>>>,
    /// Whether the connections must be authenticated as the owners of inboxes.
    pub(super) as_reader: bool,
    /// Whether each request is sent only once, by one of the connections.
    pub(super) is_once: bool,
}

/// Makes a request for each item of `filters`.
pub(super) fn requests(filters: &[String]) -> Arc<Vec<RequestFrames>> {
    Arc::new(filters.iter().enumerate().map(|(at, filters)| request(at, filters)).collect())
}

/// The names of the loads that read an author's pages, at three depths.
pub(super) const DEPTHS: [&str; 3] =
    ["until, first pages", "until, middle pages", "until, last pages"];

/// Makes the load of a shape. Adds a note if the sample has nothing to query.
pub(super) fn load(
    shape: &QueryShape,
    sample: &EventSample,
    report: &mut BenchReport,
) -> Option<ShapeRequests> {
    let filters = shape.filters(sample);
    if filters.is_empty() {
        report.note(format!("{}: no queries can be drawn from the file.", shape.name));
        return None;
    }
    Some(ShapeRequests {
        name: shape.name.into(),
        may_be_empty: shape.may_be_empty,
        requests: vec![requests(&filters)],
        as_reader: false,
        is_once: false,
    })
}

/// Makes a load of all shapes in equal parts, in random order.
pub(super) fn mixed(loads: &[ShapeRequests], connections: usize) -> ShapeRequests {
    let of = |connection: usize| {
        let mut random = Random::new(13 + connection as u64);
        let mut all = Vec::new();
        for at in 0..64 {
            for load in loads {
                let requests = &load.requests[connection % load.requests.len()];
                all.push(requests[(at + connection * 64) % requests.len()].clone());
            }
        }
        for at in (1..all.len()).rev() {
            all.swap(at, random.below(at + 1));
        }
        Arc::new(all)
    };
    ShapeRequests {
        name: MIXED.into(),
        may_be_empty: false,
        requests: (0..connections).map(of).collect(),
        as_reader: true,
        is_once: false,
    }
}

/// Returns the first, the middle and the last pages, or an empty list for fewer than four pages.
pub(super) fn depths(pages: &[String]) -> Vec<&[String]> {
    let part = PAGES.min(pages.len() / 4);
    if part == 0 {
        return Vec::new();
    }
    let middle = (pages.len() - part) / 2;
    vec![&pages[..part], &pages[middle..middle + part], &pages[pages.len() - part..]]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_taken_from_both_ends_and_the_middle() {
        let pages: Vec<String> = (0..400).map(|page| page.to_string()).collect();
        let parts = depths(&pages);
        assert_eq!((&*parts[0][0], &*parts[1][0], &*parts[2][19]), ("0", "190", "399"));
        assert_eq!(depths(&pages[..8]).iter().map(|part| part.len()).collect::<Vec<_>>(), [2; 3]);
        assert!(depths(&pages[..3]).is_empty());
    }
}
