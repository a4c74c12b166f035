//! Lists the program's interfaces from its sources and its help: routes, message types, protocols,
//! codes, commands. The test fails if an interface has no door in the table.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crate::commands::NO_DOORS;
use crate::doors;
use crate::world::program;

/// Codes of frames on control.sock, each with its sender: a command or a life of the table.
const FRAMES: [(&str, &str); 26] = [
    ("PUT", "import"),
    ("BRING", "import"),
    ("ERASE", "delete"),
    ("COMPACT", "compact"),
    ("STATS", "stats"),
    ("RELOAD", "reload"),
    ("CLIENTS", "clients"),
    ("KICK", "kick"),
    ("MODERATE", "ban"),
    ("DOOR", "waku"),
    ("LINK", "admin link"),
    ("FOLLOW", "stream"),
    ("TAKEOVER", "taken over"),
    ("READY", "taken over"),
    ("STARTED", "taken over"),
    ("EPHEMERAL", "taken over"),
    ("OUTCOME", "import"),
    ("PROGRESS", "compact"),
    ("TEXT", "stats"),
    ("FAILED", "taken over"),
    ("HANDED", "taken over"),
    ("GO", "taken over"),
    ("GROWN", "taken over"),
    ("STATE", "taken over"),
    ("RECORD", "stream"),
    ("LAGGED", "stream"),
];

/// Codes of devp2p's packets, each with the door that sends or receives the packet.
const PACKETS: [(&str, &str); 11] = [
    ("STATUS", "shh/6"),
    ("MESSAGES", "shh/6"),
    ("BATCH_ACKNOWLEDGED", "waku/1"),
    ("OUTCOMES", "waku/1"),
    ("SYNC_REQUEST", "shh/6 sync"),
    ("SYNC_RESPONSE", "shh/6 sync"),
    ("COMPLETE", "shh/6"),
    ("REQUEST", "shh/6"),
    ("DIRECT", "shh/6"),
    // These packets change announced values and have no door in the table.
    // crates/server/tests/mail/peers.rs tests them instead.
    ("POW", ""),
    ("STATUS_UPDATE", ""),
];

fn source(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("crates").join(path);
    let text =
        fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    // Code of tests contains no doors.
    text.split("#[cfg(test)]").next().unwrap_or_default().to_owned()
}

/// The texts in quotes that follow a mark.
fn quoted(text: &str, mark: &str) -> BTreeSet<String> {
    let parts = text.split(mark).skip(1);
    let after = parts.filter_map(|rest| rest.trim_start().strip_prefix('"'));
    after.filter_map(|rest| Some(rest.split('"').next()?.to_owned())).collect()
}

/// The names of constants of this type.
fn constants(text: &str, of: &str) -> BTreeSet<String> {
    let lines = text.lines().filter_map(|line| line.split_once("const "));
    let named = lines.filter_map(|(_, rest)| rest.split_once(&format!(": {of} = ")));
    named.map(|(name, _)| name.to_owned()).collect()
}

/// The commands below this command that have no subcommands, from the text of `--help`.
fn commands(path: &[&str]) -> Vec<String> {
    let help = program().args(path).arg("--help").run_with(b"").text();
    let Some((_, list)) = help.split_once("\nCommands:\n") else {
        return vec![path.join(" ")];
    };
    let lines = list.lines().take_while(|line| !line.is_empty());
    // A continued line of a description is indented further.
    let named = lines.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    let names = named.filter_map(|line| line.split_whitespace().next());
    let names = names.filter(|name| path.is_empty() || *name != "help");
    let below = |name: &str| {
        let is_end = name == "help" || NO_DOORS.iter().any(|(known, _)| *known == name);
        let path = [path, &[name]].concat();
        if is_end { vec![path.join(" ")] } else { commands(&path) }
    };
    names.flat_map(below).collect()
}

/// Returns the program's interfaces that have no door in the table.
pub(crate) fn without_a_cell() -> Vec<String> {
    let doors = doors::all();
    let mut missing = Vec::new();
    let mut look = |what: &str, network: &str, found: BTreeSet<String>, at_least: usize| {
        if found.len() < at_least {
            missing
                .push(format!("{what}: only {found:?} were found; look how they are written now"));
        }
        for name in found {
            if !doors.iter().any(|door| door.network == network && door.name == name) {
                missing.push(format!("{what} {name} has no door of `{network}` in the table"));
            }
        }
    };
    let routes = |files: &[&str]| {
        let texts = files.iter().map(|file| quoted(&source(file), ".route("));
        texts.flatten().collect::<BTreeSet<_>>()
    };
    let mut waku = routes(&["server/src/waku/rest/mod.rs", "server/src/waku/rest/admin.rs"]);
    waku.remove("/admin/{*rest}"); // where [waku] rest_admin is off
    look("route", "waku", waku, 20);
    look("route", "whisper", routes(&["server/src/whisper/rest/mod.rs"]), 5);
    let matched = |file: &str| {
        let text = source(file);
        let body = text.split("match path {").nth(1).and_then(|rest| rest.split("_ =>").next());
        let paths = body.unwrap_or_default().split('"').skip(1).step_by(2);
        paths.filter(|path| path.starts_with('/')).map(str::to_owned).collect::<BTreeSet<_>>()
    };
    let mut of_managers = matched("server/src/nostr/manage/page/routes.rs");
    of_managers.extend(quoted(&source("server/src/nostr/manage/page/view.rs"), " => "));
    of_managers.retain(|text| text.starts_with('/'));
    of_managers.remove("/admin/"); // the same page as /admin
    look("page", "nostr", of_managers, 10);
    let paths = matched("server/src/nostr/web.rs");
    let mut operators = quoted(&source("server/src/admin/http.rs"), "\n            ");
    operators.retain(|text| text.starts_with('/'));
    look("path", "operators", operators, 2);
    let of_page =
        paths.into_iter().filter(|path| !["/healthz", "/metrics"].contains(&path.as_str()));
    look("path", "nostr", of_page.collect(), 3);
    let messages = source("codec/src/nostr/message.rs");
    let words = messages.split("name.get(reader.text()").nth(1).unwrap_or_default();
    let words = words.split("other =>").next().unwrap_or_default();
    look("message", "nostr", quoted(words, "\n            "), 8);
    let mut protocols = BTreeSet::new();
    let folder = "server/src/waku/p2p";
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("crates").join(folder);
    for entry in fs::read_dir(path).expect("the folder of libp2p is read") {
        let name = entry.expect("an entry is read").file_name();
        let Some(file) =
            name.to_str().filter(|name| Path::new(name).extension().is_some_and(|end| end == "rs"))
        else {
            continue;
        };
        let text = source(&format!("{folder}/{file}"));
        protocols
            .extend(quoted(&text, "&str = ").into_iter().filter(|name| name.contains("/vac/")));
    }
    look("protocol", "waku", protocols, 5);
    look(
        "command",
        "command",
        commands(&[])
            .into_iter()
            .filter(|name| !NO_DOORS.iter().any(|(known, _)| known == name))
            .collect(),
        30,
    );
    let frames = constants(&source("server/src/admin/protocol.rs"), "u8");
    let packets = constants(&source("server/src/whisper/peers/code.rs"), "u64");
    for (what, found, known) in
        [("frame of control.sock", frames, &FRAMES[..]), ("packet of devp2p", packets, &PACKETS)]
    {
        for name in found {
            if !known.iter().any(|(code, _)| *code == name) {
                missing.push(format!("the {what} {name} has no door in tests/assembly/listed.rs"));
            }
        }
    }
    missing
}
