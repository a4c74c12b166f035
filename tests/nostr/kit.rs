//! The binary as a server of one test.

use std::path::PathBuf;
use std::time::SystemTime;

use hark_testkit::disk::scratch;

use super::client;
use crate::served::Server;

/// A relay with its own port and directory. The relay ends with the test.
pub(super) struct Relay {
    server: Server,
    root: PathBuf,
    pub(super) url: String,
    pub(super) data: PathBuf,
}

impl Relay {
    pub(super) fn start(test: &str) -> Self {
        Self::with(test, "")
    }

    /// Starts a relay with these lines of a configuration file.
    pub(super) fn with(test: &str, settings: &str) -> Self {
        let root = scratch(&format!("nostr-{test}"));
        let (data, config) = (root.join("data"), root.join("hark.toml"));
        std::fs::create_dir_all(&root).expect("is made");
        std::fs::write(&config, settings).expect("is written");
        let server = Server::start(&data, &config);
        let url = format!("ws://{}", server.address);
        Self { server, root, url, data }
    }

    /// A client that sees every message.
    pub(super) async fn client(&self) -> client::Client {
        client::Client::connect(&self.url, now()).await
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.server.kill();
        // Files that remain in the temporary directory do no harm.
        let _ = std::fs::remove_dir_all(&self.root);
    }
}

/// Seconds since 1970.
pub(super) fn now() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970").as_secs()
}
