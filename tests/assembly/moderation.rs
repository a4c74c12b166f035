//! The commands for bans and allows. The cells of all stores and lives share their archives, so each
//! cell only adds and lifts the entry of one address.

use crate::doors::Answer::{self, Own};
use crate::world::World;

/// An address that no client of a test has.
const NO_CLIENT: &str = "203.0.113.254";

/// Runs a command on the address, and checks its words.
fn change(world: &World, command: &str, words: &str) -> Answer {
    let text = world.hark(&[command, NO_CLIENT]).text();
    assert!(text.starts_with(NO_CLIENT) && text.contains(words), "{text}");
    Own
}

pub(crate) fn ban(world: &World) -> Answer {
    change(world, "ban", " banned")
}

pub(crate) fn unban(world: &World) -> Answer {
    ban(world);
    change(world, "unban", " is no longer banned")
}

pub(crate) fn allow(world: &World) -> Answer {
    change(world, "allow", " allowed")
}

pub(crate) fn unallow(world: &World) -> Answer {
    allow(world);
    change(world, "unallow", " is no longer allowed")
}

/// Makes a code, and revokes the code.
pub(crate) fn invite(world: &World) -> Answer {
    let code = world.hark(&["invite", "--uses", "2", "--for", "7d"]).text();
    let code = code.trim();
    assert!(code.len() == 32 && code.bytes().all(|byte| byte.is_ascii_hexdigit()), "{code}");
    let listed = world.hark(&["invite", "--list"]).text();
    assert!(listed.contains(&format!("{code} 0 of 2 uses, until ")), "{listed}");
    let revoked = world.hark(&["invite", "--revoke", code]).text();
    assert_eq!(revoked, format!("{code} is revoked\n"));
    Own
}

pub(crate) fn list(world: &World) -> Answer {
    ban(world);
    let text = world.hark(&["list", "bans", "--of", "addresses"]).text();
    assert!(text.contains(NO_CLIENT), "{text}");
    Own
}

pub(crate) fn reports(world: &World) -> Answer {
    let text = world.hark(&["reports"]).text();
    assert!(text.ends_with("0 subjects reported\n"), "{text}");
    Own
}

pub(crate) fn log(world: &World) -> Answer {
    ban(world);
    let text = world.hark(&["log"]).text();
    assert!(text.contains("hark ban"), "{text}");
    Own
}
