//! Tests deploy's units for systemd with systemd's own parser.

use std::path::Path;
use std::process::Command;

use super::support::Place;

/// The path at which the units expect the program.
const INSTALLED: &str = "/usr/local/bin/hark";

#[test]
fn systemd_finds_no_fault_in_the_units() {
    if Command::new("systemd-analyze").arg("--version").output().is_err() {
        return println!("passed over: there is no systemd here");
    }
    let place = Place::new("units");
    let deploy = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy");
    let mut units = Vec::new();
    for entry in std::fs::read_dir(deploy).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|ending| ending == "service" || ending == "timer") {
            let text = std::fs::read_to_string(&path).unwrap();
            let text = text.replace(INSTALLED, env!("CARGO_BIN_EXE_hark"));
            let name = path.file_name().unwrap().to_str().unwrap();
            units.push(place.file(name, text.as_bytes()));
        }
    }
    assert_eq!(units.len(), 4, "{units:?}");
    for unit in &units {
        let output = Command::new("systemd-analyze").args(["verify", unit]).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && said.is_empty(), "{unit}: {said}");
    }
    // systemd-analyze does check: its report names an unknown setting.
    let wrong = place.file("wrong.service", b"[Service]\nExecStart=/bin/true\nRestartSecs=2\n");
    let output = Command::new("systemd-analyze").args(["verify", &wrong]).output().unwrap();
    assert!(String::from_utf8_lossy(&output.stderr).contains("RestartSecs"), "{output:?}");
}
