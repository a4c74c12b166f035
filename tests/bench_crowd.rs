//! `hark bench crowd` against the binary.

use crate::bench::{bench, events, is_positive, url};
use crate::cli::support::Place;

#[test]
fn normal_clients_are_measured_alone_and_beside_heavy_clients() {
    let place = Place::new("bench-crowd");
    let file = events(&place, "6000");
    let server = place.serve_with(&["--unlimited"]);
    let url = url(&server);
    let sizes = ["--clients", "4", "--pace", "0.02", "--seconds", "0.3", "--loaded", "0"];
    let crowd = ["crowd", &file, "--url", &url, "--json"];
    // Nothing can be asked of an empty relay.
    assert_eq!(bench(&[&crowd[..], &sizes].concat()).code, 1);

    let sizes = &sizes[..sizes.len() - 2];
    let report = bench(&[&crowd[..], sizes].concat()).json();
    assert_eq!(report["faults"], serde_json::json!([]), "{report}");
    let names: Vec<_> = report["rows"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| row["name"].as_str().unwrap())
        .collect();
    assert_eq!((names[0], names[1], names[7]), ("alone", "beside a crawler", "alone again"));
    for row in report["rows"].as_array().unwrap() {
        assert!(is_positive(row, "p50_ms") && is_positive(row, "p99_ms"), "{row}");
    }
    let heavy = report["heavy"]["rows"].as_array().unwrap();
    // Five habits alone, and all of them together. The test's server has no index of words.
    assert_eq!(heavy.len(), 10, "{report}");
    // On a busy machine, a habit may finish nothing within its time.
    for row in heavy {
        assert!(row["done"].is_number() && row["refused"].is_number(), "{row}");
    }
    let (searches, others): (Vec<_>, Vec<_>) =
        heavy.iter().partition(|row| row["name"].as_str().unwrap().ends_with("searches"));
    assert!(searches.iter().any(|row| is_positive(row, "refused")), "{report}");
    assert!(others.iter().any(|row| is_positive(row, "done")), "{report}");
}
