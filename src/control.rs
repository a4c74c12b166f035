//! The control socket, by which commands reach the server of an archive.

use std::io::ErrorKind;
use std::path::Path;

use hark_server::control::{ControlClient, ControlError};

use crate::owner;

/// The name of a server's control socket in the archive's directory.
pub(crate) const CONTROL_SOCKET: &str = "control.sock";

/// Connects to the server at `socket`, for one of its shelves. Returns `None` if no server runs.
pub(crate) fn connect(socket: &Path, shelf: &str) -> anyhow::Result<Option<ControlClient>> {
    match ControlClient::connect(socket, shelf) {
        Ok(client) => Ok(Some(client)),
        Err(ControlError::Absent) => Ok(None),
        Err(ControlError::Broken(error)) if error.kind() == ErrorKind::PermissionDenied => {
            Err(anyhow::Error::new(error).context(owner::denied(socket)))
        }
        Err(error) => Err(anyhow::Error::new(error).context(format!(
            "a server runs on this archive, but does not answer on {}; nothing was written. Try \
             again, or stop the server first",
            socket.display()
        ))),
    }
}
