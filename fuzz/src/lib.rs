//! Properties that must hold for any bytes, with a module for each fuzz target. `scripts/fuzz` runs
//! the targets. The folder seeds/ has small inputs as a start, and every input that has ever found
//! a fault. The test in this file runs all seeds, and is also part of the workspace's tests
//! (tests/main.rs), which need no nightly compiler.

pub mod envelope;
pub mod event;
pub mod filter;
pub mod frame;
pub mod handshake;
pub mod light;
pub mod log;
pub mod message;
pub mod names;
pub mod negentropy;
pub mod record;
pub mod request;
pub mod segment;
pub mod socket;
pub mod strfry;
pub mod waku;

/// Parses with serde_json the bytes that Hark has accepted as JSON, and panics if serde_json
/// refuses the bytes. Returns `None` if the bytes have a number that serde_json cannot represent:
/// JSON does not bound numbers, and Hark does not parse numbers in unused fields.
fn json(bytes: &[u8]) -> Option<serde_json::Value> {
    match serde_json::from_slice(bytes) {
        Err(error) if error.to_string().starts_with("number out of range") => None,
        value => Some(value.expect("it is JSON")),
    }
}

/// Returns a path for temporary files of this thread, in memory if the machine has a file system in
/// memory.
fn scratch(name: &str) -> std::path::PathBuf {
    let memory = std::path::Path::new("/dev/shm");
    let temporary = if memory.is_dir() { memory.into() } else { std::env::temp_dir() };
    let (process, thread) = (std::process::id(), std::thread::current().id());
    temporary.join(format!("hark-fuzz-{name}-{process}-{thread:?}"))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    /// A target's name and its check.
    type Target = (&'static str, fn(&[u8]));

    #[test]
    fn all_seeds_hold() {
        let targets: [Target; 16] = [
            ("event", super::event::check),
            ("filter", super::filter::check),
            ("message", super::message::check),
            ("negentropy", super::negentropy::check),
            ("record", super::record::check),
            ("segment", super::segment::check),
            ("log", super::log::check),
            ("socket", super::socket::check),
            ("waku", super::waku::check),
            ("light", super::light::check),
            ("envelope", super::envelope::check),
            ("request", super::request::check),
            ("handshake", super::handshake::check),
            ("frame", super::frame::check),
            ("strfry", super::strfry::check),
            ("names", super::names::check),
        ];
        for (name, check) in targets {
            let root = Path::new(env!("CARGO_MANIFEST_DIR"));
            let root = if root.ends_with("fuzz") { root.into() } else { root.join("fuzz") };
            let seeds = std::fs::read_dir(root.join("seeds").join(name)).expect("seeds are there");
            let mut count = 0;
            for seed in seeds {
                let path = seed.expect("a seed").path();
                println!("{}", path.display());
                check(&std::fs::read(&path).expect("a seed"));
                count += 1;
            }
            assert!(count > 0, "no seeds for {name}");
        }
    }
}
