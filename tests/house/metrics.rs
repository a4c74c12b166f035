//! Checks that dashboards, alerts and documents name only metrics that the program has, and that
//! the documents explain each metric and each alert.

use std::collections::{BTreeMap, BTreeSet};

use super::{files, has_ending, read};

/// The sources that write a server's page for Prometheus.
const PAGES: [&str; 5] = [
    "crates/server/src/admin/prometheus.rs",
    "crates/server/src/moderation/opening.rs",
    "crates/server/src/nostr/prometheus.rs",
    "crates/server/src/waku/prometheus.rs",
    "crates/server/src/whisper/prometheus.rs",
];
/// The source of the router's page. The table of metrics in this source has the names without
/// [`ROUTER`].
const ROUTER_PAGE: &str = "src/commands/relays/router_metrics.rs";
const ROUTER: &str = "hark_router_";

/// The prefixes of all names of metrics.
const BEGINNINGS: [&str; 7] = [
    "hark_",
    "mailserver_",
    "process_",
    "reconciliation_",
    "total_bytes_",
    "total_transfer_",
    "waku_",
];

/// Pages with other names that look like metrics: keys of reports, and files of examples.
const OTHER_PAGES: [&str; 2] = ["docs/bench-commands.md", "docs/benchmarks.md"];
/// Words of documents that begin like a metric, with the reason.
const NOT_METRICS: [(&str, &str); 14] = [
    ("hark_0", "a package of version 0"),
    ("hark_1", "a package of version 1"),
    ("hark_archive", "a library"),
    ("hark_codec", "a library"),
    ("hark_moderation", "a schema of the database"),
    ("hark_networks", "a library"),
    ("hark_nostr", "a schema of the database"),
    ("hark_peers", "a part of the log"),
    ("hark_server", "a part of the log"),
    ("hark_store", "a part of a pattern"),
    ("hark_store_embedded", "a part of the log"),
    ("hark_waku", "a schema of the database"),
    ("hark_whisper", "a schema of the database"),
    ("waku_service_network_bytes", "nwaku's, and said to be missing"),
];
/// Prefixes that documents write with a star, although no metric of this program has the prefix,
/// with the reason.
const NOT_FAMILIES: [(&str, &str); 1] = [("waku_relay_", "nwaku's, and said to be missing")];

fn is_name(word: &str) -> bool {
    BEGINNINGS.iter().any(|beginning| word.starts_with(beginning))
        && word.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_'))
}

/// The names in a source that writes a page, each with whether the metric is a histogram.
fn metrics_of(source: &str) -> Vec<(String, bool)> {
    let bare: String = source.split_whitespace().collect();
    let pieces: Vec<&str> = bare.split('"').collect();
    let piece = |at: usize| pieces.get(at).copied().unwrap_or_default();
    let named = pieces.iter().enumerate().filter(|(_, word)| is_name(word));
    named
        .map(|(at, word)| {
            let before = piece(at.wrapping_sub(1));
            let is_called = before.ends_with("histogram(") || before.ends_with("tally(page,");
            let is_typed =
                [",", ";page.head(name,"].contains(&piece(at + 1)) && piece(at + 2) == "histogram";
            ((*word).to_owned(), is_called || is_typed)
        })
        .collect()
}

/// The names in the router's table.
fn metrics_of_router(source: &str) -> Vec<String> {
    let bare: String = source.split_whitespace().collect();
    let pieces: Vec<&str> = bare.split('"').collect();
    let rows =
        pieces.windows(3).filter(|row| row[1] == "," && ["gauge", "counter"].contains(&row[2]));
    rows.map(|row| format!("{ROUTER}{}", row[0])).collect()
}

/// All metrics of the program, each with whether it is a histogram.
fn metrics() -> BTreeMap<String, bool> {
    let mut metrics = BTreeMap::new();
    for (name, is_histogram) in PAGES.iter().flat_map(|page| metrics_of(&read(page))) {
        *metrics.entry(name).or_default() |= is_histogram;
    }
    metrics.extend(metrics_of_router(&read(ROUTER_PAGE)).into_iter().map(|name| (name, false)));
    metrics
}

/// The names of the series of these metrics.
fn series(metrics: &BTreeMap<String, bool>) -> BTreeSet<String> {
    let parts = |is_histogram: bool| -> &[&str] {
        if is_histogram { &["_bucket", "_sum", "_count"] } else { &[""] }
    };
    metrics
        .iter()
        .flat_map(|(name, is_histogram)| {
            parts(*is_histogram).iter().map(move |part| format!("{name}{part}"))
        })
        .collect()
}

/// The words of a text that look like the name of a metric, or like the beginning of several names.
fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').filter(|word| is_name(word))
}

#[test]
fn metrics_of_sources_are_found() {
    let source = "page.histogram(\n \"hark_a_seconds\",\n \"Help.\", &x);\n\
                  page.head(\"hark_b_seconds\", \"histogram\", \"Help.\");\n\
                  let name = \"hark_c_seconds\";\n page.head(\n name,\n \"histogram\", \"Help.\");\n\
                  tally(\n page,\n \"waku_d\", \"Help.\", x, 1.0);\n\
                  page.gauge(\"hark_e\", \"Of hark_a_seconds.\", 1);\n\
                  page.line(\"hark_b_seconds\", &format!(\"f=\\\"{f}\\\"\"), 1);\n\
                  let name = \"hark_g\"; page.head(name, \"gauge\", \"Help.\");";
    let expected = [
        ("hark_a_seconds", true),
        ("hark_b_seconds", true),
        ("hark_c_seconds", true),
        ("waku_d", true),
        ("hark_e", false),
        ("hark_b_seconds", false),
        ("hark_g", false),
    ];
    assert_eq!(
        metrics_of(source),
        expected.map(|(name, is_histogram)| (name.to_owned(), is_histogram))
    );
    let table = "[(\"connected\", \"gauge\", \"Help.\", |s| {\n s.x() }),\n\
                 (\"sent_total\", \"counter\", \"Help.\", f)]";
    assert_eq!(metrics_of_router(table), ["hark_router_connected", "hark_router_sent_total"]);
}

#[test]
fn dashboards_alerts_and_documents_name_metrics_of_the_program() {
    let metrics = metrics();
    assert!(metrics.len() > 100, "only {} metrics were found", metrics.len());
    let series = series(&metrics);
    let (mut checked, mut unknown) = (0, BTreeSet::new());
    for file in files() {
        let is_page = file.starts_with("docs/") && has_ending(&file, "md") || file == "README.md";
        let is_deployed = file.starts_with("deploy/");
        if !(is_page || is_deployed) || OTHER_PAGES.contains(&file.as_str()) {
            continue;
        }
        // Programs read these files and query series by name.
        let asks = ["json", "yml", "yaml"].iter().any(|ending| has_ending(&file, ending));
        for word in words(&read(&file)) {
            checked += 1;
            let is_family =
                word.ends_with('_') && metrics.keys().any(|name| name.starts_with(word));
            let is_known = if asks {
                series.contains(word)
            } else {
                let is_listed =
                    NOT_METRICS.iter().chain(&NOT_FAMILIES).any(|(other, _)| *other == word);
                series.contains(word) || metrics.contains_key(word) || is_family || is_listed
            };
            if !is_known {
                unknown.insert(format!("{file}: {word}"));
            }
        }
    }
    assert!(unknown.is_empty(), "the program has no such metric: {unknown:#?}");
    assert!(checked > 300, "only {checked} names were looked at");
}

/// The names that the tables of a page explain: names, and prefixes of names. A cell may shorten
/// further names to their ends: `a_b`, `_c` stands for `a_b`, and for `a_b_c` or `a_c`.
#[derive(Default)]
struct ExplainedNames {
    names: BTreeSet<String>,
    beginnings: BTreeSet<String>,
}

impl ExplainedNames {
    fn add(&mut self, page: &str) {
        for row in page.lines().filter(|line| line.starts_with("| `")) {
            let cell = row.split('|').nth(1).unwrap_or_default();
            let tokens = cell.split('`').skip(1).step_by(2);
            let mut first: Option<&str> = None;
            for token in tokens.map(|token| token.split('{').next().unwrap_or_default()) {
                if let Some(beginning) = token.strip_suffix('*') {
                    self.beginnings.insert(beginning.into());
                } else if let Some(long) = first.filter(|_| token.starts_with('_')) {
                    let ends = long.match_indices('_').map(|(at, _)| at).chain([long.len()]);
                    self.names.extend(ends.map(|end| format!("{}{token}", &long[..end])));
                } else {
                    first = Some(token);
                    self.names.insert(token.into());
                }
            }
        }
    }

    fn has(&self, name: &str) -> bool {
        self.names.contains(name)
            || self.beginnings.iter().any(|beginning| name.starts_with(beginning))
    }
}

#[test]
fn each_metric_is_explained() {
    let mut explained = ExplainedNames::default();
    explained.add(&read("docs/watching.md"));
    explained.add(&read("docs/sync.md"));
    let metrics = metrics();
    let unexplained: Vec<_> = metrics.keys().filter(|name| !explained.has(name)).collect();
    assert!(unexplained.is_empty(), "docs/watching.md does not explain {unexplained:#?}");
}

#[test]
fn shortened_names_are_found() {
    let mut explained = ExplainedNames::default();
    explained.add("| `a_b{c}`, `_d_total`, `e_*` | one |\nnot `f_g`\n| `h_i` | two |");
    for (name, is_explained) in [
        ("a_b", true),
        ("a_b_d_total", true),
        ("a_d_total", true),
        ("e_x", true),
        ("h_i", true),
        ("h_d_total", false),
        ("f_g", false),
    ] {
        assert_eq!(explained.has(name), is_explained, "{name}");
    }
}

#[test]
fn each_alert_is_explained() {
    let rules = read("deploy/prometheus/hark-rules.yml");
    let alerts: BTreeSet<&str> =
        rules.lines().filter_map(|line| line.trim_start().strip_prefix("- alert: ")).collect();
    let watching = read("docs/watching.md");
    let rows = watching.lines().filter_map(|line| line.strip_prefix("| `Hark"));
    let explained: BTreeSet<String> =
        rows.filter_map(|row| Some(format!("Hark{}", row.split_once('`')?.0))).collect();
    assert!(alerts.len() > 8, "only {alerts:?}");
    assert!(
        alerts.iter().copied().eq(explained.iter().map(String::as_str)),
        "{alerts:?}, and {explained:?}"
    );
    let counted = rules.matches("        expr: ").count();
    assert_eq!(counted, alerts.len(), "an alert has one expression, on one line");
}
