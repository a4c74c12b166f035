//! Checks of the deployment files and workflows: images and GitHub actions have versions, mounted
//! files exist, and environment variables are settings of the program.

use std::collections::BTreeSet;
use std::path::Path;

use super::{files, has_ending, read, root};

/// Variables that are no settings: of the command line, of the image's build, and of Compose files.
const NOT_SETTINGS: [&str; 6] =
    ["HARK_COMMIT", "HARK_CONFIG", "HARK_DATA", "HARK_IMAGE", "HARK_PASSWORD", "HARK_STORE"];

/// The YAML files of deploy/, each with its text.
fn deployed() -> impl Iterator<Item = (String, String)> {
    let files = files().into_iter().filter(|file| file.starts_with("deploy/"));
    let files = files.filter(|file| has_ending(file, "yaml") || has_ending(file, "yml"));
    files.map(|file| {
        let text = read(&file);
        (file, text)
    })
}

/// Values of a key in a YAML file that writes each key on a line with its value, as the files of
/// deploy/ do.
fn values<'a>(text: &'a str, key: &'a str) -> impl Iterator<Item = &'a str> {
    text.lines().filter_map(move |line| {
        let line = line.trim_start();
        let line = line.strip_prefix("- ").unwrap_or(line);
        let value = line.strip_prefix(key)?.strip_prefix(": ")?;
        Some(value.split(" #").next().unwrap_or_default().trim())
    })
}

/// Whether an image's name ends with a version.
fn has_version(image: &str) -> bool {
    let name = image.rsplit('/').next().unwrap_or_default();
    name.split_once(':').is_some_and(|(_, tag)| tag.contains(|c: char| c.is_ascii_digit()))
}

#[test]
fn images_have_versions() {
    let own = ["hark", "${HARK_IMAGE:-hark}"];
    let mut count = 0;
    for (file, text) in deployed() {
        for image in values(&text, "image").filter(|image| !own.contains(image)) {
            assert!(has_version(image), "{file}: {image}");
            count += 1;
        }
    }
    assert!(count > 8, "only {count} images");
    for (image, expected) in [
        ("postgres:17.6", true),
        ("host.example:5000/caddy", false),
        ("caddy:latest", false),
        ("prom/prometheus:v3.7.3", true),
    ] {
        assert_eq!(has_version(image), expected, "{image}");
    }
}

#[test]
fn actions_of_workflows_have_versions() {
    let mut count = 0;
    for file in files().into_iter().filter(|file| file.starts_with(".github/workflows/")) {
        for action in values(&read(&file), "uses") {
            let version = action.split_once("@v").map(|(_, version)| version);
            let is_number = |version: &str| version.parse::<u32>().is_ok();
            assert!(version.is_some_and(is_number), "{file}: {action}");
            count += 1;
        }
    }
    assert!(count > 5, "only {count} actions");
}

#[test]
fn files_to_deploy_tell_their_purpose() {
    // Grafana's dashboards are JSON, which has no comments.
    for (file, text) in deployed() {
        assert!(text.starts_with("# "), "{file} does not begin with a comment");
    }
    let compose = files()
        .into_iter()
        .filter(|file| file.starts_with("deploy/compose/") && has_ending(file, "yaml"));
    let mut count = 0;
    for file in compose {
        let name = file.trim_start_matches("deploy/compose/");
        let text = read(&file);
        let lines = text.split_inclusive('\n');
        let comment: String = lines.take_while(|line| line.starts_with('#')).collect();
        let command = format!("-f {name} up --detach --build");
        assert!(comment.contains(&command), "{file}: the comment has no line with `{command}`");
        assert!(comment.contains("Change"), "{file}: the comment does not say what to change");
        count += 1;
    }
    assert!(count >= 4, "only {count} files");
}

#[test]
fn the_build_of_the_image_gets_the_files_that_it_copies() {
    let ignored = read(".dockerignore");
    let sent: Vec<&str> = ignored.lines().filter_map(|line| line.strip_prefix('!')).collect();
    let dockerfile = read("deploy/Dockerfile");
    let copies = dockerfile.lines().filter_map(|line| line.strip_prefix("COPY "));
    let mut count = 0;
    for copy in copies.filter(|copy| !copy.starts_with("--from") && *copy != ". .") {
        let (files, _) = copy.rsplit_once(' ').expect("files and a place");
        for file in files.split(' ') {
            assert!(root().join(file).exists() && sent.contains(&file), "{file} is not sent");
            count += 1;
        }
    }
    assert!(count > 1, "only {count} files are copied");
    let missing: Vec<_> = sent.iter().filter(|file| !root().join(file).exists()).collect();
    assert!(missing.is_empty(), "there is no {missing:?}");
}

#[test]
fn mounted_files_exist() {
    let mut count = 0;
    for (file, text) in deployed() {
        let folder = root().join(Path::new(&file).parent().expect("a folder"));
        for line in text.lines() {
            let source = line.trim_start().strip_prefix("- ").map(|mount| mount.trim_matches('"'));
            let source = source.and_then(|mount| mount.split(':').next());
            let Some(source) = source.filter(|source| source.starts_with('.')) else { continue };
            assert!(folder.join(source).exists(), "{file} mounts {source}, which is not there");
            count += 1;
        }
    }
    assert!(count > 8, "only {count} mounts");
}

/// The variables of all settings, from the page that the program makes.
fn settings() -> BTreeSet<String> {
    let (mut section, mut found) = (String::new(), BTreeSet::new());
    for line in read("docs/settings.md").lines() {
        if let Some(name) = line.strip_prefix("## [") {
            section = name.trim_end_matches(']').into();
        } else if let Some(rest) = line.strip_prefix("- **`") {
            let key = rest.split('`').next().unwrap_or_default();
            found.insert(format!("HARK_{section}_{key}").to_ascii_uppercase());
        }
    }
    found
}

#[test]
fn variables_are_settings() {
    let settings = settings();
    assert!(settings.len() > 100, "only {} settings", settings.len());
    let mut count = 0;
    let folders = ["deploy/compose/", "deploy/citus/compose.yaml", "deploy/Dockerfile"];
    for file in files().into_iter().filter(|file| folders.iter().any(|at| file.starts_with(at))) {
        let text = read(&file);
        let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        for word in words.filter(|word| word.starts_with("HARK_")) {
            let is_known = settings.contains(word) || NOT_SETTINGS.contains(&word);
            assert!(is_known, "{file}: {word} is no setting");
            count += 1;
        }
    }
    assert!(count > 20, "only {count} variables");
}
