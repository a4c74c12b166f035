//! The page for Prometheus, and the dashboards in deploy/grafana that use its metrics.

use std::collections::BTreeSet;
use std::path::Path;

use hark_testkit::clock::now_ns;
use hark_testkit::http::get;
use hark_testkit::wait::until;
use serde_json::Value;

use super::{Node, folder, import, message};

fn page(node: &Node) -> String {
    let (status, page) = get(&node.relay, "/metrics").parts();
    assert_eq!(status, 200);
    page
}

/// Returns the value of a metric, named with its labels, as text.
fn said<'a>(page: &'a str, metric: &str) -> &'a str {
    let mut lines = page.lines().filter_map(|line| line.rsplit_once(' '));
    lines.find(|(name, _)| *name == metric).unwrap_or_else(|| panic!("{metric}")).1
}

/// Returns the value of a metric that is a whole number.
fn value(page: &str, metric: &str) -> u64 {
    said(page, metric).parse().expect("a whole number")
}

/// Prefixes of the metrics of databases and mirrors, which this node does not have. A test of the
/// tree (`tests/house/metrics.rs`) compares these metrics with the sources.
const OF_OTHER_STORES: [&str; 3] = ["hark_database_", "hark_mirror_", "hark_statement_"];

/// Names of the page's series.
fn names(page: &str) -> BTreeSet<String> {
    let types = page.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
    let mut names = BTreeSet::new();
    for (name, kind) in types {
        match kind {
            "histogram" => {
                names.extend(["bucket", "sum", "count"].map(|part| format!("{name}_{part}")));
            }
            _ => assert!(names.insert(name.into()), "{name} is there twice"),
        }
    }
    names
}

/// Appends all values of `key`, anywhere in the JSON, to `found`.
fn under<'a>(json: &'a Value, key: &str, found: &mut Vec<&'a Value>) {
    match json {
        Value::Object(fields) => {
            for (name, value) in fields {
                if name == key {
                    found.push(value);
                }
                under(value, key, found);
            }
        }
        Value::Array(values) => values.iter().for_each(|value| under(value, key, found)),
        _ => {}
    }
}

/// Names of the metrics in a PromQL expression: names that are neither labels, nor numbers, nor
/// functions.
fn metrics(expr: &str) -> Vec<String> {
    let mut bare: String = expr.split_whitespace().collect();
    for (open, close) in [("{", '}'), ("[", ']'), ("by(", ')')] {
        while let Some(start) = bare.find(open) {
            let end = bare[start..].find(close).expect("is closed") + start;
            bare.replace_range(start..=end, "");
        }
    }
    let words = bare.split(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != '(');
    let names = words.flat_map(|word| word.split_inclusive('('));
    let names = names
        .filter(|word| word.starts_with(|c: char| c.is_ascii_alphabetic()) && !word.ends_with('('));
    names.map(String::from).collect()
}

#[test]
fn metrics_are_found_in_expressions() {
    for (expr, expected) in [
        ("a_total", vec!["a_total"]),
        ("sum by (le, b) (rate(a_bucket{c=~\"$d\", e=\"f\"}[$__rate_interval]))", vec!["a_bucket"]),
        ("1 - sum(x{y=\"z\"}) / sum(increase(w_2[5m])) > 0", vec!["x", "w_2"]),
        ("histogram_quantile(0.99, sum by (le) (rate(a[1m])))", vec!["a"]),
    ] {
        assert_eq!(metrics(expr), expected, "{expr}");
    }
}

#[test]
fn dashboards_ask_for_what_there_is() {
    let settings = [("HARK_WHISPER_SERVE", "true"), ("HARK_WHISPER_REST", "127.0.0.1:0")];
    let node = Node::start("dashboards", &settings);
    let there = names(&page(&node));
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/grafana");
    let mut boards = 0;
    for file in std::fs::read_dir(folder).expect("is there") {
        let file = file.expect("is read").path();
        if file.extension().is_none_or(|extension| extension != "json") {
            continue;
        }
        boards += 1;
        let text = std::fs::read_to_string(&file).expect("is read");
        let board: Value = serde_json::from_str(&text).expect("JSON");
        let (mut exprs, mut variables) = (Vec::new(), Vec::new());
        under(&board, "expr", &mut exprs);
        under(&board["templating"], "definition", &mut variables);
        assert!(exprs.len() > 20 && !variables.is_empty(), "{}", file.display());
        for expr in exprs {
            let expr = expr.as_str().expect("text");
            let asked = metrics(expr);
            assert!(!asked.is_empty(), "{expr}");
            for name in asked {
                let is_other = OF_OTHER_STORES.iter().any(|family| name.starts_with(family));
                assert!(is_other || there.contains(&name), "{}: {name} in {expr}", file.display());
            }
        }
        for variable in variables {
            // label_values(metric, label)
            let text = variable.as_str().expect("text");
            let name = text.split(['(', ',']).nth(1).expect("a metric");
            assert!(there.contains(name), "{}: {text}", file.display());
        }
    }
    assert_eq!(boards, 4);
}

#[test]
fn messages_and_comparisons_are_counted_under_nwakus_names() {
    let data = folder("counted");
    let start = now_ns() - 60_000_000_000;
    let lines = (0..3).map(|at| {
        let message = message("counted", "AAAA", start + at);
        let kept = serde_json::json!({ "message": message, "pubsubTopic": "/waku/2/rs/1/4" });
        format!("{kept}\n")
    });
    import(&data, &lines.collect::<String>());
    let first = Node::on(data, &[]);
    let settings = [
        ("stores", first.peers[0].as_str()),
        ("resume_max_s", "0"),
        ("sync_every_s", "1"),
        ("sync_jitter_s", "0"),
    ];
    let second = Node::start("counting", &settings);
    until("the second has all", || second.hashes("").len() == 3);
    // After another comparison, both nodes have the same messages.
    let compared = |node: &Node| value(&page(node), "reconciliation_roundtrips_count");
    let before = compared(&second);
    until("they compare again", || compared(&second) > before);

    let (sent, received) = (page(&first), page(&second));
    for (page, direction, other) in [(&sent, "sent", "receive"), (&received, "receive", "sent")] {
        let messages = "total_transfer_messages_exchanged_total";
        assert_eq!(value(page, &format!("{messages}{{direction=\"{direction}\"}}")), 3);
        assert_eq!(value(page, &format!("{messages}{{direction=\"{other}\"}}")), 0);
        let bytes = |protocol: &str, direction: &str| {
            let labels = format!("{{protocol=\"{protocol}\",direction=\"{direction}\"}}");
            value(page, &format!("total_bytes_exchanged_total{labels}"))
        };
        assert!(bytes("transfer", direction) > 100, "{page}");
        assert_eq!(bytes("transfer", other), 0);
        assert!(bytes("reconciliation", "sent") > 0, "{page}");
        assert!(bytes("reconciliation", "receive") > 0, "{page}");
        assert!(value(page, "reconciliation_differences_bucket{le=\"0\"}") >= 1, "{page}");
    }
    assert!(value(&received, "waku_catch_ups_total{by=\"sync\",result=\"done\"}") >= 2);
    assert_eq!(value(&received, "waku_archive_messages_per_shard{shard=\"4\"}"), 3);
    assert!(received.contains("# TYPE waku_archive_messages_per_shard counter"), "{received}");
    // Messages stored before the start are not counted.
    assert_eq!(value(&sent, "waku_archive_messages_per_shard{shard=\"4\"}"), 0);
    // The histogram of sizes does not count messages from other stores, either.
    assert_eq!(value(&received, "waku_histogram_message_size_count"), 0);

    let mut large = message("counted", &"AAAA".repeat(500), now_ns());
    second.publish(&large);
    large["ephemeral"] = true.into();
    second.publish(&large);
    second.hashes("");
    let page = page(&second);
    for (metric, expected) in [
        ("waku_histogram_message_size_bucket{le=\"1\"}", 0),
        ("waku_histogram_message_size_bucket{le=\"3\"}", 2),
        ("waku_histogram_message_size_sum", 3),
        ("waku_histogram_message_size_count", 2),
        ("waku_node_messages_total{type=\"relay\"}", 2),
    ] {
        assert_eq!(value(&page, metric), expected, "{metric}");
    }
    let asked_s = said(&page, "waku_store_time_seconds{phase=\"query-db-time\"}").parse::<f64>();
    assert!(asked_s.is_ok_and(|asked_s| asked_s > 0.0));
    let shards = page.lines().filter(|line| line.starts_with("waku_archive_messages_per_shard{"));
    assert_eq!(shards.count(), 8);
}
