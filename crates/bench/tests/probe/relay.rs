//! A small relay in memory, which can be made wrong in chosen ways, or strict in ways that the NIPs
//! allow.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use hark_codec::crypto::SignatureVerifier;
use hark_codec::nostr::{Event, EventArena};
use serde_json::{Value, json};

/// A way in which the relay is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RelayFault {
    None,
    AcceptsAll,
    AnyTagValue,
    ClosesNothing,
    DeletesForeign,
    DeletesNothing,
    ForgetsTies,
    HasNoPrefix,
    IgnoresLimit,
    IsSilent,
    OldestFirst,
    RefusesAll,
    ReplacesNothing,
    SinceExclusive,
    StoresEphemeral,
    SwallowsSome,
    /// Right: lets only the owner of [`MEMBER`] authenticate, and requires AUTH for all messages.
    AdmitsMember,
    /// Right: sends the headers of CORS in answers to OPTIONS alone.
    AnswersPreflight,
    /// Right: deletes an event, and accepts the event again later.
    ForgetsDeletions,
    /// Right: refuses events of kind 7.
    RefusesKind,
    /// Right: refuses all questions and counts.
    RefusesQuestions,
    /// Right: requires AUTH for all messages.
    RequiresAuth,
}

/// The secret key of the only member of [`RelayFault::AdmitsMember`].
pub(crate) const MEMBER: &str = "0101010101010101010101010101010101010101010101010101010101010101";
/// The public key of [`MEMBER`].
const MEMBER_PUBKEY: &str = "1b84c5567b126440995d3ed5aaba0565d71e1834604819ff9c17f5e9d5dd078f";
/// The challenge of all connections.
const CHALLENGE: &str = "prove it";

impl RelayFault {
    fn requires_auth(self) -> bool {
        matches!(self, Self::AdmitsMember | Self::RequiresAuth)
    }
}

struct FaultySubscription {
    connection: u64,
    id: String,
    filters: Vec<Value>,
    stream: TcpStream,
}

#[derive(Default)]
struct FaultyState {
    events: Vec<Value>,
    subscriptions: Vec<FaultySubscription>,
    connections: u64,
}

/// A small relay in memory.
pub(crate) struct FaultyRelay {
    pub(crate) url: String,
}

impl FaultyRelay {
    /// Starts a relay on a free port. The relay runs until the test ends.
    pub(crate) fn start(fault: RelayFault) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let url = format!("ws://{}", listener.local_addr().expect("is bound"));
        let state = Arc::new(Mutex::new(FaultyState::default()));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let state = Arc::clone(&state);
                std::thread::spawn(move || serve(&stream, &state, fault));
            }
        });
        Self { url }
    }
}

fn send(mut stream: &TcpStream, message: &Value) {
    let text = message.to_string();
    let mut frame = vec![0x81];
    match text.len() {
        len @ 0..126 => frame.push(len as u8),
        len @ 126..65_536 => {
            frame.push(126);
            frame.extend_from_slice(&(len as u16).to_be_bytes());
        }
        len => {
            frame.push(127);
            frame.extend_from_slice(&(len as u64).to_be_bytes());
        }
    }
    frame.extend_from_slice(text.as_bytes());
    // A client that has gone away reads nothing.
    let _ = stream.write_all(&frame);
}

/// Reads a frame of a client. `None` at the end of the connection.
fn receive(from: &mut impl std::io::Read) -> Option<String> {
    let mut head = [0; 2];
    from.read_exact(&mut head).ok()?;
    let mut len = u64::from(head[1] & 0x7f);
    if len >= 126 {
        let mut bytes = [0; 8];
        let size = if len == 126 { 2 } else { 8 };
        from.read_exact(&mut bytes[8 - size..]).ok()?;
        len = u64::from_be_bytes(bytes);
    }
    let mut mask = [0; 4];
    from.read_exact(&mut mask).ok()?;
    let mut payload = vec![0; usize::try_from(len).ok()?];
    from.read_exact(&mut payload).ok()?;
    payload.iter_mut().zip(mask.iter().cycle()).for_each(|(byte, mask)| *byte ^= mask);
    (head[0] & 15 == 1).then(|| String::from_utf8_lossy(&payload).into_owned())
}

fn serve(stream: &TcpStream, state: &Mutex<FaultyState>, fault: RelayFault) {
    let mut reader = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if reader.read_line(&mut head).unwrap_or(0) == 0 {
            return;
        }
    }
    let mut out = stream;
    if head.starts_with("OPTIONS ") && fault == RelayFault::AnswersPreflight {
        let headers = ["Origin", "Headers", "Methods"]
            .map(|name| format!("Access-Control-Allow-{name}: *\r\n"));
        let _ = write!(out, "HTTP/1.1 204 No Content\r\n{}\r\n", headers.concat());
        return;
    }
    if head.contains("nostr+json") {
        let nips =
            if fault == RelayFault::RefusesQuestions { &[1, 9, 11, 45][..] } else { &[1, 9, 11] };
        let document = json!({
            "name": "small",
            "supported_nips": nips,
            "software": "small",
            "limitation": {"auth_required": fault == RelayFault::AdmitsMember},
        });
        let _ = write!(out, "HTTP/1.1 200 OK\r\n\r\n{document}");
        return;
    }
    if !head.starts_with("GET / ") {
        let _ = write!(out, "HTTP/1.1 404 Not Found\r\n\r\n");
        return;
    }
    let upgrade = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade";
    let _ = write!(out, "{upgrade}\r\n\r\n");
    let connection = {
        let mut state = state.lock().expect("no thread panics");
        state.connections += 1;
        state.connections
    };
    let mut is_authenticated = !fault.requires_auth();
    while let Some(text) = receive(&mut reader) {
        let Ok(Value::Array(parts)) = serde_json::from_str(&text) else { continue };
        let name = parts.first().and_then(Value::as_str).unwrap_or_default();
        if name == "AUTH" && parts.len() == 2 && fault.requires_auth() {
            let refusal = refusal_of_auth(&parts[1], fault);
            is_authenticated |= refusal.is_empty();
            send(stream, &json!(["OK", parts[1]["id"], refusal.is_empty(), refusal]));
            continue;
        }
        if !is_authenticated {
            let why = "auth-required: members only";
            send(stream, &json!(["AUTH", CHALLENGE]));
            match name {
                "EVENT" if parts.len() == 2 => {
                    send(stream, &json!(["OK", parts[1]["id"], false, why]));
                }
                "REQ" if parts.len() > 2 => send(stream, &json!(["CLOSED", parts[1], why])),
                _ => {}
            }
            continue;
        }
        let mut state = state.lock().expect("no thread panics");
        match name {
            "EVENT" if parts.len() == 2 => {
                state.publish(stream, &parts[1], fault);
            }
            "REQ" | "COUNT" if fault == RelayFault::RefusesQuestions && parts.len() > 2 => {
                send(stream, &json!(["CLOSED", parts[1], "blocked: no questions"]));
            }
            "REQ" if parts.len() > 2 => state.request(stream, connection, &parts, fault),
            "CLOSE" if parts.len() == 2 && fault != RelayFault::ClosesNothing => {
                let is_closed = |open: &FaultySubscription| {
                    open.connection == connection && parts[1] == open.id
                };
                state.subscriptions.retain(|open| !is_closed(open));
            }
            _ => {}
        }
    }
    let mut state = state.lock().expect("no thread panics");
    state.subscriptions.retain(|open| open.connection != connection);
}

/// Why the relay refuses an AUTH. Empty if the AUTH is right.
fn refusal_of_auth(event: &Value, fault: RelayFault) -> &'static str {
    if kind(event) != 22_242 || values(event, "challenge") != [CHALLENGE] || !is_valid(event) {
        return "invalid: not an answer to the challenge";
    }
    if fault == RelayFault::AdmitsMember && event["pubkey"] != MEMBER_PUBKEY {
        return "restricted: not a member";
    }
    ""
}

fn is_valid(event: &Value) -> bool {
    let text = event.to_string();
    let mut arena = EventArena::new();
    let Ok(event) = Event::parse(text.as_bytes(), &mut arena) else { return false };
    event.has_valid_id()
        && SignatureVerifier::new(1).verify(event.id(), event.pubkey(), event.signature()).is_ok()
}

fn kind(event: &Value) -> u64 {
    event["kind"].as_u64().unwrap_or(0)
}

fn time(event: &Value) -> u64 {
    event["created_at"].as_u64().unwrap_or(0)
}

/// The first values of the tags of this name.
fn values<'a>(event: &'a Value, name: &str) -> Vec<&'a str> {
    let tags = event["tags"].as_array().into_iter().flatten();
    tags.filter(|tag| tag[0] == name).filter_map(|tag| tag[1].as_str()).collect()
}

/// The address of a replaceable event.
fn address(event: &Value) -> Option<String> {
    let kind = kind(event);
    let d = match kind {
        0 | 3 | 10_000..20_000 => "",
        30_000..40_000 => values(event, "d").first().copied().unwrap_or_default(),
        _ => return None,
    };
    Some(format!("{kind}:{}:{d}", event["pubkey"].as_str().unwrap_or_default()))
}

fn deletes(request: &Value, event: &Value, fault: RelayFault) -> bool {
    let is_named = values(request, "e").iter().any(|id| event["id"] == **id)
        || address(event).is_some_and(|address| {
            values(request, "a").contains(&address.as_str()) && time(event) <= time(request)
        });
    let is_own = request["pubkey"] == event["pubkey"] || fault == RelayFault::DeletesForeign;
    kind(request) == 5
        && kind(event) != 5
        && is_named
        && is_own
        && fault != RelayFault::DeletesNothing
}

fn matches(filter: &Value, event: &Value, fault: RelayFault) -> bool {
    let Some(filter) = filter.as_object() else { return false };
    filter.iter().all(|(name, wanted)| {
        let has = |found: &Value| wanted.as_array().is_some_and(|all| all.contains(found));
        match &**name {
            "ids" => has(&event["id"]),
            "authors" => has(&event["pubkey"]),
            "kinds" => has(&event["kind"]),
            "since" if fault == RelayFault::SinceExclusive => Some(time(event)) > wanted.as_u64(),
            "since" => Some(time(event)) >= wanted.as_u64(),
            "until" => Some(time(event)) <= wanted.as_u64(),
            "limit" => true,
            _ if fault == RelayFault::AnyTagValue && name.starts_with('#') => {
                event["tags"].as_array().into_iter().flatten().any(|tag| {
                    let all = tag.as_array().map(|tag| &tag[1..]).unwrap_or_default();
                    tag[0] == name[1..] && all.iter().any(has)
                })
            }
            _ => name
                .strip_prefix('#')
                .is_some_and(|letter| values(event, letter).iter().any(|value| has(&json!(value)))),
        }
    })
}

/// Whether the filter has the form of a filter.
fn is_filter(filter: &Value) -> bool {
    filter.as_object().is_some_and(|filter| {
        filter.iter().all(|(name, value)| match &**name {
            "since" | "until" | "limit" => value.is_u64(),
            "ids" | "authors" | "kinds" => value.is_array(),
            name => name.starts_with('#') && value.is_array(),
        })
    })
}

impl FaultyState {
    /// Whether the relay accepts the event, and the message of OK.
    fn judge(&self, event: &Value, fault: RelayFault) -> (bool, &'static str) {
        if fault == RelayFault::RefusesAll {
            return (false, "restricted: not allowed to write");
        }
        if fault != RelayFault::AcceptsAll && !is_valid(event) {
            let prefix = fault != RelayFault::HasNoPrefix;
            return (false, if prefix { "invalid: bad id or signature" } else { "no" });
        }
        if self.events.iter().any(|stored| stored["id"] == event["id"]) {
            return (true, "duplicate: already have this event");
        }
        if fault == RelayFault::RefusesKind && kind(event) == 7 {
            return (false, "blocked: no reactions");
        }
        let forgets = fault == RelayFault::ForgetsDeletions;
        if !forgets && self.events.iter().any(|stored| deletes(stored, event, fault)) {
            return (false, "deleted: by its author");
        }
        (true, "")
    }

    fn publish(&mut self, stream: &TcpStream, event: &Value, fault: RelayFault) {
        if fault == RelayFault::IsSilent {
            return;
        }
        let (accepted, message) = self.judge(event, fault);
        if accepted && message.is_empty() {
            self.store(event, fault);
            for open in &self.subscriptions {
                if open.filters.iter().any(|filter| matches(filter, event, fault)) {
                    send(&open.stream, &json!(["EVENT", open.id, event]));
                }
            }
        }
        send(stream, &json!(["OK", event["id"], accepted, message]));
    }

    fn store(&mut self, event: &Value, fault: RelayFault) {
        if (20_000..30_000).contains(&kind(event)) && fault != RelayFault::StoresEphemeral {
            return;
        }
        if let Some(address_of_event) = address(event)
            && fault != RelayFault::ReplacesNothing
        {
            let id = |event: &Value| event["id"].as_str().unwrap_or_default().to_owned();
            let is_same = |stored: &Value| address(stored).as_ref() == Some(&address_of_event);
            let wins = |stored: &Value| match time(stored).cmp(&time(event)) {
                std::cmp::Ordering::Equal if fault == RelayFault::ForgetsTies => false,
                std::cmp::Ordering::Equal => id(stored) < id(event),
                order => order.is_gt(),
            };
            if self.events.iter().any(|stored| is_same(stored) && wins(stored)) {
                return;
            }
            self.events.retain(|stored| !is_same(stored));
        }
        self.events.retain(|stored| !deletes(event, stored, fault));
        self.events.push(event.clone());
    }

    fn request(&mut self, stream: &TcpStream, connection: u64, parts: &[Value], fault: RelayFault) {
        let (id, filters) = (parts[1].as_str().unwrap_or_default(), &parts[2..]);
        if !filters.iter().all(is_filter) {
            return send(stream, &json!(["CLOSED", id, "unsupported: not a filter"]));
        }
        let mut sent = Vec::new();
        for filter in filters {
            let mut page: Vec<_> =
                self.events.iter().filter(|event| matches(filter, event, fault)).collect();
            page.sort_by_key(|event| (std::cmp::Reverse(time(event)), event["id"].to_string()));
            if fault == RelayFault::OldestFirst {
                page.reverse();
            }
            if fault != RelayFault::IgnoresLimit {
                page.truncate(filter["limit"].as_u64().unwrap_or(u64::MAX) as usize);
            }
            for event in page {
                let is_swallowed = fault == RelayFault::SwallowsSome && kind(event) == 7;
                if !is_swallowed && !sent.contains(&event) {
                    send(stream, &json!(["EVENT", id, event]));
                    sent.push(event);
                }
            }
        }
        send(stream, &json!(["EOSE", id]));
        self.subscriptions.retain(|open| open.connection != connection || open.id != id);
        let stream = stream.try_clone().expect("is cloned");
        let filters = filters.to_vec();
        self.subscriptions.push(FaultySubscription { connection, id: id.into(), filters, stream });
    }
}
