//! The smallest network that has all required parts: lines of text under topics. A line is `topic
//! time text`, and its id is its hash. In a topic with a `!`, only the newest line is kept.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use hark_archive::effects::{Effects, Rules};
use hark_archive::{Id, LabelSet, Query, Record};
use hark_codec::crypto::sha256;
use hark_codec::record::{LabelPosition, RecordHeader, write};
use hark_networks::{FilterTextError, LabelValues};
use hark_networks::{Filters, LineFault, LineFormat, LineReader, Network, RecordProperties};
use hark_server::door::{self, Door, DoorAddress, Host, OpenFuture, OpenNetwork, Operators};
use hark_server::listener::{ClientStream, Listener};
use hark_server::service::{IntakeBounds, LiveRecords, Service, StoreLocation};
use hark_server::{metrics::MetricsPage, shelf, stop::StopSignal};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};

#[derive(Clone, Copy, Debug)]
pub struct Toy;

impl Network for Toy {
    fn name(&self) -> &'static str {
        "toy"
    }
    fn records(&self) -> &'static str {
        "lines"
    }
    fn nature(&self) -> RecordProperties {
        RecordProperties { one_kind: true, listed_labels: b"t", ..RecordProperties::default() }
    }
    fn rules(&self) -> Box<dyn Rules> {
        Box::new(Self)
    }
    fn lines(&self) -> &dyn LineFormat {
        self
    }
    fn filters(&self) -> &dyn Filters {
        self
    }
}

fn encode(line: &str, record: &mut Vec<u8>) -> Result<Id, String> {
    let (topic, rest) = line.split_once(' ').unwrap_or((line, ""));
    let time = rest.split(' ').next().and_then(|time| time.parse().ok());
    let time = time.ok_or("a line is a topic, a time in seconds and a text")?;
    let id = sha256(line.as_bytes());
    let head = RecordHeader { id, time, author: None, kind: 0, expires: None };
    let label = (b't', LabelPosition::Wire { at: 0, len: topic.len() as u32 });
    write(record, &head, line.as_bytes(), [label].into_iter());
    Ok(id)
}

fn of_topic(topic: &[u8]) -> Query {
    Query { labels: vec![LabelSet::one(b't', topic)], ..Query::default() }
}

impl Rules for Toy {
    fn effects(&self, record: &Record<'_>, effects: &mut Effects) {
        let topic = record.labels().next().map_or(&b""[..], |(_, topic)| topic);
        effects.slot = topic.starts_with(b"!").then(|| of_topic(topic));
    }
}

impl LineFormat for Toy {
    fn write(&self, record: &Record<'_>, line: &mut Vec<u8>) {
        line.extend_from_slice(record.wire());
    }
    fn reader(&self, _: &hark_networks::ReadOptions) -> Box<dyn LineReader> {
        Box::new(Self)
    }
}

impl LineReader for Toy {
    fn read(
        &mut self,
        line: &[u8],
        is_kept: &dyn Fn(&Id) -> bool,
        record: &mut Vec<u8>,
    ) -> Result<(), LineFault> {
        record.clear();
        let id = encode(&String::from_utf8_lossy(line), record).map_err(LineFault::Malformed)?;
        if is_kept(&id) { Err(LineFault::Kept) } else { Ok(()) }
    }
}

/// A filter is a topic, or `*` for all.
impl Filters for Toy {
    fn query(&self, text: &str, _: LabelValues<'_>) -> Result<Option<Query>, FilterTextError> {
        Ok(Some(if text == "*" { Query::default() } else { of_topic(text.as_bytes()) }))
    }
    fn text(&self, query: &Query) -> String {
        let topic = query.labels.first().map_or(&b"*"[..], |label| &label.values[0]);
        String::from_utf8_lossy(topic).into_owned()
    }
    fn example(&self) -> &'static str {
        "weather"
    }
}

/// The door: stores each received line and answers with the outcome. `?topic` is answered with the
/// lines of the topic and an empty line. After `+topic`, new lines are sent as they come, until the
/// connection ends.
pub struct Serving {
    pub listen: SocketAddr,
    pub shelf: shelf::ShelfOptions,
    pub store_at: StoreLocation,
}

impl door::ServableNetwork for Serving {
    fn open<'a>(self: Box<Self>, host: &'a mut Host<'_>) -> OpenFuture<'a> {
        Box::pin(async move {
            let (listener, addr) = host.listen(self.listen, "HARK_TOY")?;
            let (live, bounds) = (LiveRecords::default(), IntakeBounds::default());
            let service =
                Service::open(host, self.shelf, Arc::new(live.clone()), bounds, self.store_at);
            let shelf = Arc::clone(service.shelf());
            let service = Arc::new(service);
            Ok(OpenNetwork { door: Arc::new(ToyDoor { service, live, listener, addr }), shelf })
        })
    }
}

struct ToyDoor {
    service: Arc<Service>,
    live: LiveRecords,
    listener: Listener,
    addr: SocketAddr,
}

impl Door for ToyDoor {
    fn addresses(&self) -> Vec<DoorAddress> {
        vec![DoorAddress { what: "toy on", at: self.addr.to_string() }]
    }
    fn listeners(&self) -> std::io::Result<Vec<OwnedFd>> {
        self.listener.sockets()
    }
    fn metrics(&self, page: &mut MetricsPage) {
        self.service.write_metrics("toy", page);
    }
    fn serve(self: Arc<Self>, _: Operators, stop: StopSignal) -> door::DoorFuture {
        Box::pin(async move {
            let (service, live) = (&self.service, &self.live);
            let talk = |stream, ip| serve_client(stream, ip, Arc::clone(service), live.clone());
            self.listener.serve(stop, talk).await;
        })
    }
    fn close(&self) {
        self.service.close();
    }
}

async fn serve_client(at: ClientStream, ip: IpAddr, service: Arc<Service>, live: LiveRecords) {
    let (from, mut to) = tokio::io::split(at);
    let mut lines = BufReader::new(from).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let query = line.strip_prefix(['?', '+']).map(|topic| of_topic(topic.as_bytes()));
        let live =
            query.clone().filter(|_| line.starts_with('+')).map(|query| live.subscribe(query));
        let mut record = Vec::new();
        let answer = match (query, encode(&line, &mut record)) {
            (Some(query), _) => service.ask(ip, "TOPIC", query).await.map(|page| page.text()),
            (None, Ok(_)) => service.store(ip, record).await.map(|done| format!("Ok({done:?})")),
            (None, Err(fault)) => Ok(format!("Err({fault:?})")),
        };
        let answer = answer.unwrap_or_else(|refusal| refusal.to_string()) + "\n";
        if to.write_all(answer.as_bytes()).await.is_err() {
            return;
        }
        let Some(mut live) = live else { continue };
        while let Some(line) = live.next().await {
            if to.write_all(&[&line[..], b"\n"].concat()).await.is_err() {
                return;
            }
        }
    }
}
