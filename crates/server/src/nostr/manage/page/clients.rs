//! The open connections, in the order of `hark clients`, with buttons that close a connection.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use super::form::query;
use super::view::{AdminPage, AdminView, cell, long_id, next_link, options, table};
use crate::blocking;
use crate::nostr::html::{Html, html};
use crate::nostr::manage::fault::ManageFault;
use crate::roster::{AddressPrivacy, is_listed};
use crate::words::{bytes, count, number};

/// Maximum number of connections of a page.
const ROWS_MAX: usize = 100;
/// The orders of the list: the value of the field, and its name.
const ORDERS: [(&str, &str); 4] = [
    ("since", "the oldest first"),
    ("rows", "the most work first"),
    ("events", "the most events first"),
    ("bytes", "the most bytes first"),
];

pub(super) async fn page(view: &AdminView<'_>) -> Result<Html, ManageFault> {
    let order = view.asked.filled("sort").unwrap_or("since").to_owned();
    let filter: String = view.asked.get("filter").chars().take(100).collect();
    let after: u64 = view.asked.get("after").parse().unwrap_or(0);
    let settings = view.relay.settings();
    let (privacy, groups) = (settings.addresses_shown, Arc::clone(&settings.rate_groups));
    let roster = Arc::clone(view.relay.connections.clients().roster());
    let is_by_time = order == "since";
    let (measure, searched) = (order.clone(), filter.clone());
    let read = blocking::run(move || {
        let (mut first, mut matching, mut next) = (BTreeMap::new(), 0_u64, None);
        roster.visit(after, |connection| {
            if !is_listed(connection, &searched, privacy) {
                return true;
            }
            matching += 1;
            if is_by_time && first.len() == ROWS_MAX {
                next = first.last_key_value().map(|((_, number), _): (&(_, u64), _)| *number);
                return false;
            }
            let row = connection.row(privacy, &groups);
            first.insert((Reverse(measured(&measure, &row)), connection.number()), row);
            if first.len() > ROWS_MAX {
                first.pop_last();
            }
            true
        });
        (first.into_values().collect::<Vec<_>>(), matching, next, roster.len() as u64)
    });
    let (rows, matching, next, open) = read.await.map_err(|_| ManageFault::Stopping)?;
    let now_s = view.relay.shelf.clock().now_s();
    let shown: Vec<Html> = rows.iter().map(|row| show(view, row, privacy, now_s)).collect();
    let next = next.map(|next| {
        let after = next.to_string();
        let fields = [("sort", order.as_str()), ("filter", &filter), ("after", &after)];
        view.url(AdminPage::Clients, &fields)
    });
    let cut = (!is_by_time && matching > ROWS_MAX as u64)
        .then(|| format!(", {} match, the first {ROWS_MAX} are shown", number(matching)));
    Ok(html!(
        "<form class=\"choice\" method=\"get\">\n\
         <label>Address, key or network <input name=\"filter\" value=\"{filter}\" maxlength=\"100\"></label>\n\
         <label>Order <select name=\"sort\">{orders}</select></label>\n<button>Show</button></form>\n\
         <p class=\"count\">{open}{cut}</p>\n{table}{next}",
        filter = filter,
        orders = options(&ORDERS, &order),
        open = count(open, "open connection"),
        cut = cut,
        table = table(
            "Open connections",
            &["client", "connected", "subscriptions", "events", "questions", "rows", "bytes", ""],
            &shown,
            "No open connection matches."
        ),
        next = next_link(next),
    ))
}

/// The measure by which rows are ordered; the greatest measure is first.
fn measured(order: &str, row: &Value) -> u64 {
    match order {
        "rows" => figure(row, "rows"),
        "events" => figure(row, "accepted") + figure(row, "refused"),
        "bytes" => figure(row, "received_bytes") + figure(row, "sent_bytes"),
        _ => 0,
    }
}

fn figure(row: &Value, name: &str) -> u64 {
    row[name].as_u64().unwrap_or_default()
}

fn show(view: &AdminView<'_>, row: &Value, privacy: AddressPrivacy, now_s: u64) -> Html {
    let text = |name: &str| row[name].as_str().unwrap_or_default();
    let shown = |name: &str| number(figure(row, name));
    let keys = row["keys"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let keys: Html = keys.map(|key| html!("<br>{}", long_id(key))).collect();
    let (address, connection) = (text("address"), figure(row, "number").to_string());
    let agent = Some(text("agent")).filter(|agent| !agent.is_empty());
    let agent = agent.map(|agent| html!("<br><small>{}</small>", agent));
    let ban = (privacy == AddressPrivacy::Whole).then(|| {
        let url = view.url(AdminPage::Rulings, &[]) + &query(&[("subject", address)]) + "#new";
        html!(" <a href=\"{}\">Ban address</a>", url)
    });
    let hidden = [("whom", connection.as_str())];
    let name = format!("connection {connection}");
    let close = view.button((AdminPage::Clients, "close"), &hidden, ("Close", &name));
    [
        cell(
            "client",
            &html!(
                "<b>{}</b> <small>{} {}</small>{}{}",
                address,
                text("network"),
                text("form"),
                keys,
                agent
            ),
        ),
        cell("connected", &html!("{}", age(now_s.saturating_sub(figure(row, "since"))))),
        cell("subscriptions", &html!("{}", shown("subscriptions"))),
        cell(
            "events",
            &html!(
                "{}<br><small class=\"whole\">{} refused</small>",
                shown("accepted"),
                shown("refused")
            ),
        ),
        cell(
            "questions",
            &html!(
                "{}<br><small class=\"whole\">{} refused</small>",
                shown("questions"),
                shown("unanswered")
            ),
        ),
        cell("rows", &html!("{}", shown("rows"))),
        cell(
            "bytes",
            &html!(
                "<span class=\"whole\">{} in</span><br><span class=\"whole\">{} out</span>",
                bytes(figure(row, "received_bytes")),
                bytes(figure(row, "sent_bytes"))
            ),
        ),
        html!("<td class=\"acts\">{}{}</td>", close, ban),
    ]
    .into_iter()
    .collect()
}

/// A duration in its largest unit: `59 s`, `3 min`, `5 h`, `12 d`.
fn age(seconds: u64) -> String {
    let units = [("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1)];
    let unit = units.into_iter().find(|(_, unit_s)| seconds >= *unit_s);
    unit.map_or("0 s".into(), |(unit, unit_s)| format!("{} {unit}", seconds / unit_s))
}
