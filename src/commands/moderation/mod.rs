//! `hark ban`, `unban`, `allow`, `unallow`, `invite`, `list` and `log`: the bans, allows and invites
//! in the archive, and the audit log. A running server of an archive in files makes the changes itself. Otherwise,
//! the command opens the archive.

pub(crate) mod change;
pub(crate) mod invite;
pub(crate) mod list;
pub(crate) mod log;
mod purge;

use std::sync::Arc;

use anyhow::Context as _;
use hark_archive::Store;
use hark_networks::Network as _;
use hark_server::control::{ControlClient, ControlError};
use hark_server::moderation::{Moderation, ModerationNetwork, ModerationRequest};
use serde_json::Value;

use crate::config::setup;
use crate::location::ArchiveLocation;
use crate::print;
use crate::stores::StoreLock;
use crate::writer::WriterHandle;
use crate::wrong_use::WrongUse;

/// The receiver of requests to read or change bans and allows.
pub(super) enum ModerationDesk {
    /// The running server.
    Server(ControlClient),
    /// This process, with the archive open.
    Own {
        moderation: Moderation,
        // Dropped after the store.
        _lock: StoreLock,
    },
    /// An archive that has no bans yet, opened for reading.
    Empty,
}

/// Returns the location of the shelf with the bans. Fails if this program has no such shelf.
fn bans(location: &ArchiveLocation) -> anyhow::Result<ArchiveLocation> {
    let setup = setup(ModerationNetwork.name());
    let setup = setup.ok_or_else(|| WrongUse("this program keeps no bans in archives".into()))?;
    Ok(location.of(setup.network))
}

impl ModerationDesk {
    /// Opens the archive for changes.
    pub(super) fn open(location: &ArchiveLocation) -> anyhow::Result<Self> {
        Ok(match bans(location)?.write()? {
            WriterHandle::Server(client) => Self::Server(client),
            WriterHandle::Own(owned) => {
                Self::Own { moderation: Self::over(owned.store)?, _lock: owned.lock }
            }
        })
    }

    /// Opens the archive for reading.
    pub(super) fn read(location: &ArchiveLocation) -> anyhow::Result<Self> {
        let location = bans(location)?;
        if let Some(client) = location.server()? {
            return Ok(Self::Server(client));
        }
        if !location.exists() {
            return Ok(Self::Empty);
        }
        match location.read() {
            Err(error) if location.store.lacks(&location.place(), &error) => Ok(Self::Empty),
            store => Ok(Self::Own { moderation: Self::over(store?)?, _lock: StoreLock::none() }),
        }
    }

    fn over(store: Arc<dyn Store>) -> anyhow::Result<Moderation> {
        Moderation::over(store).context("the bans could not be read")
    }

    /// Sends a request, and returns the answer.
    pub(super) fn ask(&mut self, request: &ModerationRequest) -> anyhow::Result<Value> {
        match self {
            Self::Server(client) => client.moderate(request).map_err(|error| match error {
                ControlError::Refused(why) => anyhow::anyhow!(why),
                error => anyhow::Error::new(error).context("the server did not report the result"),
            }),
            Self::Own { moderation, .. } => {
                let request = serde_json::to_vec(request).context("a request has no form")?;
                Ok(moderation.answer(&request)?)
            }
            Self::Empty => Ok(Value::Null),
        }
    }

    /// Requests all pages of a list, and passes the rows to `each` until `limit` rows were passed.
    /// `request` makes the request for the page after a cursor. Returns whether there are more rows.
    pub(super) fn pages(
        &mut self,
        limit: usize,
        request: impl Fn(Option<String>) -> ModerationRequest,
        mut each: impl FnMut(&Value) -> anyhow::Result<()>,
    ) -> anyhow::Result<bool> {
        let (mut after, mut left) = (None, limit);
        loop {
            let page = self.ask(&request(after))?;
            let rows = page["rows"].as_array().map_or(&[][..], Vec::as_slice);
            for row in rows.iter().take(left) {
                each(row)?;
            }
            let is_cut = rows.len() > left;
            left = left.saturating_sub(rows.len());
            after = page["next"].as_str().map(str::to_owned);
            if after.is_none() || left == 0 {
                return Ok(is_cut || after.is_some());
            }
        }
    }
}

/// Returns the actor for the audit log: the command and its user.
pub(super) fn actor(command: &str) -> String {
    format!("hark {command} ({})", user())
}

/// Returns the user who runs the command.
pub(super) fn user() -> String {
    let named = ["SUDO_USER", "USER"].iter().find_map(|name| std::env::var(name).ok());
    let uid = rustix::process::getuid().as_raw();
    let user = named.filter(|name| !name.is_empty()).unwrap_or_else(|| format!("uid {uid}"));
    user.chars().filter(|c| !c.is_control()).take(64).collect()
}

/// Returns a time as text, in UTC.
pub(super) fn shown_time(at_s: u64) -> String {
    print::moment(at_s)
}
