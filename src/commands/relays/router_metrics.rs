//! `/metrics` of a router: the state of each of its streams.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Router as WebRouter;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, StatusCode};
use axum::response::IntoResponse as _;
use axum::routing::get;
use hark_peers::{RelayAddress, StreamStatus};
use hark_server::hosts;
use hark_server::metrics::MetricsPage;
use parking_lot::Mutex;
use tokio::net::TcpListener;

/// The states of the running streams, by stream name and relay.
pub(super) type SharedStatuses = Arc<Mutex<BTreeMap<(String, RelayAddress), Arc<StreamStatus>>>>;

/// Serves the page until the process ends.
pub(super) async fn serve(listener: TcpListener, statuses: SharedStatuses) {
    let page = async |State(statuses): State<SharedStatuses>, headers: HeaderMap| {
        if !hosts::are_own(&headers, Vec::new()) {
            let words = "not under this name; use an address, localhost or this machine's name\n";
            return (StatusCode::FORBIDDEN, words).into_response();
        }
        let kind = "text/plain; version=0.0.4; charset=utf-8";
        ([(CONTENT_TYPE, kind)], page(&statuses)).into_response()
    };
    let app = WebRouter::new().route("/metrics", get(page)).with_state(statuses);
    if let Err(error) = axum::serve(listener, app).await {
        tracing::error!(%error, "metrics are no longer served");
    }
}

/// A metric of a stream: its name, type and help text, and the function that returns its value.
type StreamMetric = (&'static str, &'static str, &'static str, fn(&StreamStatus) -> u64);

const METRICS: [StreamMetric; 12] = [
    ("connected", "gauge", "Whether the relay is connected.", |status| {
        status.is_connected().into()
    }),
    ("in_step", "gauge", "Whether no event was missed since the last comparison.", |status| {
        status.is_in_step().into()
    }),
    (
        "behind_seconds",
        "gauge",
        "Seconds since the archive and the relay were last in step; 0 while they are in step.",
        |status| status.behind_s(),
    ),
    ("waiting_events", "gauge", "Events that wait to be sent to the relay.", |status| {
        status.waiting()
    }),
    ("connections_total", "counter", "Connections that were made.", |status| status.connections()),
    ("received_events_total", "counter", "Events that were received from the relay.", |status| {
        status.meter.totals().received
    }),
    ("stored_events_total", "counter", "Received events that were newly stored.", |status| {
        status.meter.totals().stored
    }),
    ("refused_events_total", "counter", "Received events that were refused.", |status| {
        let refused = status.meter.totals().refused_here;
        refused.total() - refused.of("duplicate")
    }),
    ("sent_events_total", "counter", "Events that were sent to the relay.", |status| {
        status.meter.totals().sent
    }),
    ("taken_events_total", "counter", "Sent events that the relay accepted.", |status| {
        status.meter.totals().taken
    }),
    ("refused_there_events_total", "counter", "Sent events that the relay refused.", |status| {
        status.meter.totals().refused_there.total()
    }),
    ("withheld_events_total", "counter", "Private events that were not sent.", |status| {
        status.meter.totals().withheld
    }),
];

fn page(statuses: &SharedStatuses) -> String {
    let mut page = MetricsPage::default();
    let statuses = statuses.lock();
    for (name, kind, help, value) in METRICS {
        let name = format!("hark_router_{name}");
        page.head(&name, kind, help);
        for ((stream, relay), status) in &*statuses {
            let labels =
                format!("stream=\"{}\",relay=\"{}\"", escaped(stream), escaped(relay.as_str()));
            page.line(&name, &labels, value(status));
        }
    }
    page.into_text()
}

/// Returns the text escaped for use as a label value.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}
