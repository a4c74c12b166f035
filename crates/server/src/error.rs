//! Why a server does not start.

use crate::admin::control::ControlError;
use crate::settings::LimitsConflict;
use crate::tls::TlsError;

/// Why a server does not start.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The server cannot listen on an address.
    #[error("cannot listen on {addr}: {cause}; choose another with {setting}")]
    Listen {
        /// The address, with its configured name.
        addr: String,
        /// The setting that names the address.
        setting: &'static str,
        /// The error of the operating system.
        cause: std::io::Error,
    },
    /// The running server listens on all addresses of the port, but with different sockets.
    #[error(
        "cannot take over the port of {addr}: `[::]` alone and `[::]` beside `0.0.0.0` need different \
         sockets, and the running server uses the other kind. Listen on the addresses of the \
         running server, or stop it and start this one without a takeover"
    )]
    OtherSockets {
        /// The address, with its configured name.
        addr: String,
    },
    /// A configured name cannot be resolved.
    #[error(
        "cannot listen on {address}: the name cannot be resolved ({cause}); let the name resolve to \
         this machine, or choose an address with {setting}"
    )]
    Resolve {
        /// The configured address.
        address: String,
        /// The setting that names the address.
        setting: &'static str,
        /// The error of the operating system.
        cause: std::io::Error,
    },
    /// The configured names of a door resolve to too many addresses.
    #[error("cannot listen on more than {max} addresses of one door; name fewer with {setting}")]
    TooManyAddresses {
        /// Maximum number of addresses.
        max: usize,
        /// The setting that names the addresses.
        setting: &'static str,
    },
    /// `control.sock` cannot be created.
    #[error("cannot open {path}: {cause}")]
    Control {
        /// The path of the socket.
        path: String,
        /// The error of the operating system.
        cause: std::io::Error,
    },
    /// A network cannot be served.
    #[error(transparent)]
    Door(Box<dyn std::error::Error + Send + Sync>),
    /// A thread cannot be started.
    #[error("cannot start a thread: {0}")]
    Thread(std::io::Error),
    /// The system provides no random bytes.
    #[error("cannot generate random bytes: {0}")]
    Random(getrandom::Error),
    /// The certificate cannot be used.
    #[error("cannot serve TLS: {0}")]
    Tls(TlsError),
    /// The limits contradict each other.
    #[error("limits: {0}")]
    Limits(LimitsConflict),
    /// The running server refused the takeover.
    #[error("cannot take over: {0}")]
    TakeOver(ControlError),
    /// The server that took over is gone.
    #[error("the server that took over is gone: {0}")]
    Lost(String),
}
