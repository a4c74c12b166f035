//! Warnings of the database about a session's statements.
//!
//! A commit can succeed with a warning that changes its meaning: a worker of a cluster has failed at
//! the end of the commit, or somebody has cancelled the wait for a synchronous standby.

use std::future::poll_fn;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio_postgres::error::Severity;
use tokio_postgres::{AsyncMessage, Connection, Socket};

use crate::hosts::TlsStream;

/// The last warning of a session that was not taken yet.
#[derive(Clone, Debug, Default)]
pub(crate) struct SessionWarnings(Arc<Mutex<Option<String>>>);

impl SessionWarnings {
    /// Returns the last warning since the previous call.
    pub(crate) fn take(&self) -> Option<String> {
        self.0.lock().take()
    }

    /// Drives a connection until the connection ends, and keeps its warnings.
    pub(crate) async fn follow(self, mut connection: Connection<Socket, TlsStream>) {
        while let Some(Ok(message)) = poll_fn(|context| connection.poll_message(context)).await {
            if let AsyncMessage::Notice(notice) = message
                && notice.parsed_severity() == Some(Severity::Warning)
            {
                *self.0.lock() = Some(notice.message().to_owned());
            }
        }
    }
}
