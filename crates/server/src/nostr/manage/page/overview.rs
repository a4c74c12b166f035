//! The state of the server: health (`hark healthz`), the size and growth of the archive, and the
//! figures of each network (`hark stats`).

use super::view::{AdminView, cell, table};
use crate::blocking;
use crate::door::OpenNetwork;
use crate::growth::GrowthLog;
use crate::nostr::html::{Html, html};
use crate::nostr::manage::fault::ManageFault;
use crate::words::{bytes, count, moment, number, signed, span};

/// The figures of a network.
struct NetworkFigures {
    name: String,
    records: Html,
    rows: Vec<(&'static str, String, String)>,
    free_bytes: Option<u64>,
}

pub(super) async fn page(view: &AdminView<'_>) -> Result<Html, ManageFault> {
    let (is_healthy, lines) = view.operators.health_lines();
    let items: Html = lines.lines().map(|line| html!("<li>{}</li>\n", line)).collect();
    let class = if is_healthy { "health good" } else { "health bad" };
    let health =
        html!("<section>\n<h2>Health</h2>\n<ul class=\"{}\">\n{}</ul>\n</section>\n", class, items);
    let (networks, log) = (view.operators.networks(), view.operators.growth_log());
    let now_s = view.relay.shelf.clock().now_s();
    // The size of a database is the answer to a query.
    let read = blocking::run(move || {
        let figures: Vec<NetworkFigures> = networks
            .iter()
            .filter(|network| !network.door.addresses().is_empty())
            .map(|network| read_figures(network, log.as_deref(), now_s))
            .collect();
        let free = figures.iter().filter_map(|figures| figures.free_bytes).min();
        let days = free.and_then(|free| log.as_ref()?.days_until_full(free, now_s));
        (figures, free, days)
    });
    let (figures, free, days) = read.await.map_err(|_| ManageFault::Stopping)?;
    let free = free.map(|free| fact("free on the disk", &html!("{}", bytes(free))));
    let days = days.map(|days| fact("full in", &html!("{}", count(days as u64, "day"))));
    let disk = (free.is_some() || days.is_some()).then(|| {
        html!(
            "<section>\n<h2>Disk</h2>\n<dl class=\"counts\">\n{}{}</dl>\n</section>\n",
            free,
            days
        )
    });
    let networks: Html = figures.iter().map(show_network).collect();
    Ok(html!("{}{}{}", health, disk, networks))
}

fn fact(name: &str, value: &Html) -> Html {
    html!("<div><dt>{}</dt><dd>{}</dd></div>\n", name, value)
}

fn read_figures(network: &OpenNetwork, log: Option<&GrowthLog>, now_s: u64) -> NetworkFigures {
    let shelf = &network.shelf;
    let stats = shelf.store().stats();
    let growth = log.and_then(|log| log.of(shelf.name(), now_s));
    let second = shelf.network().nature().units_per_s;
    let time = |at: Option<u64>| at.map_or("-".into(), |at| moment(at / second));
    let gained = growth.map_or_else(
        || html!("not known yet"),
        |growth| {
            html!(
                "{} <small>and {} {}, over {}</small>",
                signed(growth.bytes_per_day, bytes),
                signed(growth.records_per_day, number),
                shelf.records(),
                span(growth.measured_s)
            )
        },
    );
    let records = [
        fact(shelf.records(), &html!("{}", number(stats.records))),
        fact("on disk", &html!("{}", bytes(stats.bytes))),
        fact("grows a day by", &gained),
        fact("oldest", &html!("{}", time(stats.oldest))),
        fact("newest", &html!("{}", time(stats.newest))),
        fact("found damaged", &html!("{}", number(stats.damaged))),
    ];
    let since = shelf.since_s();
    let mut rows = vec![("up since", moment(since), String::default())];
    rows.extend(network.door.stats().1);
    NetworkFigures {
        name: shelf.name().to_owned(),
        records: records.into_iter().collect(),
        rows,
        free_bytes: stats.free_bytes,
    }
}

fn show_network(figures: &NetworkFigures) -> Html {
    let rows: Vec<Html> = figures
        .rows
        .iter()
        .map(|(name, value, remark)| {
            html!(
                "<th scope=\"row\">{}</th>{}{}",
                *name,
                cell("figure", &html!("{}", value)),
                cell("remark", &html!("{}", remark))
            )
        })
        .collect();
    html!(
        "<section>\n<h2 class=\"network\">{}</h2>\n<dl class=\"counts\">\n{}</dl>\n{}</section>\n",
        figures.name,
        figures.records,
        table("Figures since the start of the server", &["figure", "value", "remark"], &rows, "")
    )
}
