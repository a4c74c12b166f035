//! The pages of the busiest author's notes.

use crate::report::BenchReport;
use crate::requests::{created_at, request};
use crate::sample::EventSample;
use crate::shapes;
use crate::target::Refusals;
use crate::websocket::{RelayConnection, RelayMessage};

/// Maximum number of events of a page.
const PAGE: usize = 500;

/// Returns the filters of the busiest author's pages, newest first, after reading all pages once.
pub(super) async fn pages(
    sample: &EventSample,
    connection: &mut RelayConnection,
    report: &mut BenchReport,
) -> anyhow::Result<Vec<String>> {
    let Some((author, notes)) = sample.authors.first() else { return Ok(Vec::new()) };
    let page = (*notes as usize / 10).clamp(1, PAGE);
    let mut until = sample.times.last().copied().unwrap_or(0);
    let mut pages = Vec::new();
    loop {
        let filters = shapes::page(author, until, page);
        let request = request(0, &filters);
        connection.send(&request.req).await?;
        let (mut events, mut oldest) = (0, until);
        loop {
            match connection.next().await? {
                RelayMessage::Event(text) => {
                    events += 1;
                    oldest = oldest.min(created_at(text).unwrap_or(oldest));
                }
                RelayMessage::Eose(text) if request.is_ended_by(text) => break,
                refusal @ (RelayMessage::Closed(_) | RelayMessage::Notice(_)) => {
                    let mut refusals = Refusals::default();
                    refusals.add_message(refusal);
                    refusals.add_to(report, "the walk through pages");
                    return Ok(Vec::new());
                }
                _ => {}
            }
        }
        connection.send(&request.close).await?;
        // The last page is not full and cannot be compared with the others.
        if events < page {
            return Ok(pages);
        }
        pages.push(filters);
        // The next page repeats the events of the oldest second, unless these events fill a whole
        // page.
        until = if oldest < until { oldest } else { until.saturating_sub(1) };
    }
}
