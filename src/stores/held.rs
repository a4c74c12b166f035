//! The error for an archive whose lock another process holds.

use std::path::PathBuf;

use crate::control::CONTROL_SOCKET;

/// Another process holds the archive's lock.
#[derive(Debug)]
pub(crate) struct ArchiveHeld {
    pub(crate) pid: String,
    pub(crate) data: PathBuf,
}

impl std::error::Error for ArchiveHeld {}

impl std::fmt::Display for ArchiveHeld {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (pid, data) = (&self.pid, self.data.display());
        write!(
            out,
            "another process ({pid}) holds the archive in {data}; stop it first, let `hark serve \
             --takeover` take its place, or name another directory with --data"
        )?;
        // The server's socket is tried before the lock, so a server with a socket would have been
        // found.
        let socket = self.data.join(CONTROL_SOCKET);
        if !socket.exists() {
            write!(
                out,
                ". If it is a server, no command reaches it, as {} is missing: see the server's log",
                socket.display()
            )?;
        }
        Ok(())
    }
}
