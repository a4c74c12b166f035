//! Errors of requests to a running server.

use std::io;

/// Why a request to a running server failed.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// No server runs on this archive.
    #[error("no server answers on control.sock")]
    Absent,
    /// The server refused the request.
    #[error("the server refused: {0}")]
    Refused(String),
    /// The connection broke.
    #[error("the server's control socket broke: {0}; see the server's log")]
    Broken(#[from] io::Error),
}

/// Returns the error for an answer that breaks the protocol.
pub(super) fn broken(came: &str) -> ControlError {
    io::Error::new(io::ErrorKind::InvalidData, format!("the server sent {came}")).into()
}
