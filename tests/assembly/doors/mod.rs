//! The doors: in this suite, all interfaces of the program. Each has a short contract: the request,
//! the conditions on the answer, and the part of the answer that must be the same as on an archive
//! in files. A module has the contracts of one network.

use hark_testkit::http::{HttpReply, get};
use serde_json::{Value, json};

use crate::world::World;
use crate::{commands, peers};

mod admin;
mod nostr;
mod waku;
mod whisper;

/// The answer of a door.
pub(crate) enum Answer {
    /// An answer that must be the same on every store.
    Same(String),
    /// An answer that depends on the store and is not compared.
    Own,
}

use Answer::{Own, Same};

/// A door.
pub(crate) struct Door {
    pub(crate) network: &'static str,
    /// The name in the program: a route, a message's type, a protocol, a command.
    pub(crate) name: &'static str,
    /// Sends the request, and panics if the contract does not hold.
    pub(crate) ask: fn(&World) -> Answer,
    /// Whether the door is queried many times, which reveals a leak per request.
    pub(crate) is_brief: bool,
}

const fn door(network: &'static str, name: &'static str, ask: fn(&World) -> Answer) -> Door {
    Door { network, name, ask, is_brief: true }
}

/// A door whose contract is one long exchange, which is not repeated.
const fn once(network: &'static str, name: &'static str, ask: fn(&World) -> Answer) -> Door {
    Door { network, name, ask, is_brief: false }
}

/// The doors of the servers. `commands::COMMANDS` has all other doors.
const SERVED: &[Door] = &[
    door("nostr", "EVENT", nostr::publishes),
    door("nostr", "REQ", nostr::asks),
    door("nostr", "COUNT", nostr::counts),
    door("nostr", "CLOSE", nostr::closes),
    door("nostr", "AUTH", nostr::authenticates),
    door("nostr", "NEG-OPEN", nostr::compares),
    door("nostr", "NEG-MSG", nostr::compares_on),
    door("nostr", "NEG-CLOSE", nostr::compares),
    door("nostr", "/", nostr::page),
    door("nostr", "NIP-11", nostr::document),
    door("nostr", "/counts", nostr::page_counts),
    door("nostr", "/page.js", |world| Same(get(&world.reads().relay, "/page.js").ok())),
    door("nostr", "/page.css", |world| Same(get(&world.reads().relay, "/page.css").ok())),
    once("nostr", "/admin", |world| admin::page(world, "/admin", "grows a day by")),
    once("nostr", "/admin/clients", |world| {
        admin::page(world, "/admin/clients", "open connection")
    }),
    once("nostr", "/admin/bans", admin::bans),
    once("nostr", "/admin/reports", |world| admin::page(world, "/admin/reports", "reported")),
    once("nostr", "/admin/members", |world| admin::page(world, "/admin/members", "Add a member")),
    once("nostr", "/admin/roles", |world| admin::page(world, "/admin/roles", "New role")),
    once("nostr", "/admin/log", |world| admin::page(world, "/admin/log", "Acts of")),
    once("nostr", "/admin/login", |world| {
        admin::log_in(world);
        Own
    }),
    door("nostr", "/admin/key", admin::key),
    once("nostr", "/admin/logout", admin::log_out),
    door("nostr", "/admin/login.js", |world| {
        Same(get(&world.reads().relay, "/admin/login.js").ok())
    }),
    door("operators", "/healthz", |world| Same(get(&world.reads().relay, "/healthz").ok())),
    door("operators", "/metrics", metrics),
    door("waku", "/store/v3/messages", waku::history),
    door("waku", "/relay/v1/messages/{topic}", waku::published_to_shard),
    door("waku", "/relay/v1/auto/messages", waku::published),
    door("waku", "/relay/v1/auto/messages/{topic}", waku::polled),
    door("waku", "/relay/v1/subscriptions", waku::shard_subscriptions),
    door("waku", "/relay/v1/auto/subscriptions", waku::polled),
    door("waku", "/filter/v2/subscriptions", waku::filtered),
    door("waku", "/filter/v2/subscriptions/all", waku::filtered),
    door("waku", "/filter/v2/subscriptions/{requestId}", waku::filtered),
    door("waku", "/filter/v2/messages/{contentTopic}", waku::filtered),
    door("waku", "/lightpush/v3/message", waku::pushed),
    door("waku", "/lightpush/v1/message", waku::pushed),
    door("waku", "/health", |world| shape(&get(&world.reads().waku, "/health"))),
    door("waku", "/info", |world| shape(&get(&world.reads().waku, "/info"))),
    door("waku", "/debug/v1/info", |world| shape(&get(&world.reads().waku, "/debug/v1/info"))),
    door("waku", "/version", |world| Same(get(&world.reads().waku, "/version").ok())),
    door("waku", "/debug/v1/version", |world| {
        Same(get(&world.reads().waku, "/debug/v1/version").ok())
    }),
    door("waku", "/openapi.json", |world| Same(get(&world.reads().waku, "/openapi.json").ok())),
    once("waku", "/admin/v1/peers", peers::dialled),
    once("waku", "/admin/v1/peer/{id}", peers::one),
    once("waku", "/admin/v1/peers/service", |world| peers::listed(world, "service")),
    once("waku", "/admin/v1/peers/connected", |world| peers::listed(world, "connected")),
    once("waku", "/admin/v1/peers/connected/on/{shard}", |world| {
        peers::listed(world, "connected/on/0")
    }),
    once("waku", "/admin/v1/peers/relay", |world| peers::by_shard(world, "relay")),
    once("waku", "/admin/v1/peers/relay/on/{shard}", |world| peers::by_shard(world, "relay/on/0")),
    once("waku", "/admin/v1/peers/mesh", |world| peers::by_shard(world, "mesh")),
    once("waku", "/admin/v1/peers/mesh/on/{shard}", |world| peers::by_shard(world, "mesh/on/0")),
    once("waku", "/admin/v1/peers/stats", |world| peers::by_shard(world, "stats")),
    door("waku", "/admin/v1/filter/subscriptions", |world| {
        let reply = get(&world.reads().waku, "/admin/v1/filter/subscriptions");
        Same(format!("{} {}", reply.status, reply.text()))
    }),
    once("waku", "/vac/waku/relay/2.0.0", peers::gossiped),
    once("waku", "/vac/waku/store-query/3.0.0", peers::asked_by_peer),
    once("waku", "/vac/waku/metadata/1.0.0", |world| peers::listed(world, "connected")),
    once("waku", "/vac/waku/peer-exchange/2.0.0-alpha1", peers::exchanged),
    once("waku", "/vac/waku/filter-subscribe/2.0.0-beta1", peers::light_services),
    once("waku", "/vac/waku/filter-push/2.0.0-beta1", peers::light_services),
    once("waku", "/vac/waku/lightpush/3.0.0", peers::light_services),
    once("waku", "/vac/waku/lightpush/2.0.0-beta1", peers::light_services),
    once("waku", "/vac/waku/reconciliation/1.0.0", peers::reconciled),
    once("waku", "/vac/waku/transfer/1.0.0", peers::reconciled),
    door("whisper", "/whisper/envelopes", whisper::posted),
    door("whisper", "/whisper/messages", whisper::envelopes),
    door("whisper", "/health", |world| Same(get(&world.reads().whisper, "/health").ok())),
    door("whisper", "/version", |world| Same(get(&world.reads().whisper, "/version").ok())),
    door("whisper", "/openapi.json", |world| {
        Same(get(&world.reads().whisper, "/openapi.json").ok())
    }),
    door("whisper", "shh/6", peers::mail_of_geth),
    door("whisper", "waku/1", peers::mail_of_status),
    door("whisper", "shh/6 sync", peers::mail_synced),
];

/// All doors, in the order of the requests.
pub(crate) fn all() -> Vec<&'static Door> {
    SERVED.iter().chain(commands::COMMANDS).collect()
}

/// A command, which runs as a new process each time.
pub(crate) const fn command(name: &'static str, ask: fn(&World) -> Answer) -> Door {
    once("command", name, ask)
}

/// Replaces numbers and the units of sizes, which differ with time and store, so that the other text
/// can be compared.
pub(crate) fn without_numbers(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '0'..='9' if out.ends_with('#') => {}
            '0'..='9' => out.push('#'),
            c => out.push(c),
        }
    }
    ["KiB", "MiB", "GiB"].iter().fold(out, |text, unit| text.replace(unit, "B"))
}

/// The fields of a JSON answer, without their values.
fn shape(reply: &HttpReply) -> Answer {
    fn of(value: &Value) -> Value {
        match value {
            Value::Object(fields) => {
                fields.iter().map(|(name, value)| (name.clone(), of(value))).collect()
            }
            Value::Array(list) => list.iter().map(of).collect(),
            Value::String(text) if text.chars().all(|c| c.is_ascii_uppercase() || c == '_') => {
                value.clone()
            }
            Value::String(_) => json!("text"),
            Value::Number(_) => json!(0),
            other => other.clone(),
        }
    }
    assert_eq!(reply.status, 200, "{}", reply.text());
    Same(of(&reply.json()).to_string())
}

fn metrics(world: &World) -> Answer {
    let page = get(&world.reads().relay, "/metrics").ok();
    let mut series = std::collections::BTreeSet::new();
    for line in page.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
        let (name, value) = line.rsplit_once(' ').expect("a value");
        assert!(value.parse::<f64>().is_ok_and(f64::is_finite), "{line}");
        assert!(series.insert(name), "twice: {line}");
    }
    for label in ["", "{shelf=\"waku\"}", "{shelf=\"whisper\"}"] {
        let name = format!("hark_store_records{label} ");
        let value = page.lines().find_map(|line| line.strip_prefix(&name)?.parse::<u64>().ok());
        assert!(value.is_some_and(|value| value >= 30), "{name} is {value:?}");
    }
    Own
}
