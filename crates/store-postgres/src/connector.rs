//! Opens sessions and sets their settings.

use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio_postgres::Client;

use crate::address::{AddressError, DatabaseAddress};
use crate::cluster::NodeAddress;
use crate::deadline::Deadline;
use crate::error::StatementError;
use crate::session::{DatabaseSession, MARK, StatementTimes};
use crate::waiting::ConnectionRuntime;
use crate::warnings::SessionWarnings;

/// Time limit for a node of a cluster to accept a connection. It is also the idle time after which
/// a connection to a node is probed.
const NODE_ANSWERS: Duration = Duration::from_secs(5);
/// Time without an answer to a probe after which a node's connection counts as lost.
const NODE_LOST: Duration = Duration::from_mins(1);

/// Minimum of [`Connector::probe_max`].
const PROBE_MIN: Duration = Duration::from_secs(1);

/// Opens sessions.
#[derive(Clone)]
pub(crate) struct Connector {
    address: DatabaseAddress,
    /// The statements that set a session's settings.
    settings: String,
    /// The schema in which tables are looked up; `None` for the database's default.
    schema: Option<String>,
    /// Time limit of a round trip, and of opening a session.
    timeout: Duration,
    /// How long opening the last session took, in milliseconds.
    opened_in: Arc<AtomicU64>,
    /// All sessions share this value.
    pub(crate) statement_times: Arc<StatementTimes>,
}

impl Connector {
    /// Makes a connector for the database at `url`. Each session gets these settings, and uses the
    /// tables of `schema`.
    ///
    /// Hark waits at most `statement_timeout` for a statement. The database itself ends a statement
    /// a little earlier, so a session whose statement was slow can be used again.
    pub(crate) fn new(
        url: &str,
        schema: &str,
        statement_timeout: Duration,
        connect_timeout: Duration,
        settings: &'static [(&'static str, &'static str)],
    ) -> Result<Self, AddressError> {
        let mut address = DatabaseAddress::read(url)?;
        let hosts = u32::try_from(address.hosts().count()).unwrap_or(u32::MAX);
        let config = &mut address.config;
        let path = std::iter::once(("search_path", schema));
        let settings = set(path.chain(settings.iter().copied()), statement_timeout / 10 * 9);
        // If some hosts are down, there is still time for the others.
        config.connect_timeout(connect_timeout.min(statement_timeout / hosts.saturating_add(1)));
        config.keepalives_idle(Duration::from_secs(30));
        config.tcp_user_timeout(statement_timeout);
        if config.get_application_name().is_none() {
            config.application_name("hark");
        }
        let schema = Some(schema.to_owned());
        Ok(Self::with(address, settings, schema, statement_timeout))
    }

    /// Makes a connector for a node of a cluster. Its statements need no schema and take at most
    /// `limit`. A lost node is noticed within a minute, even if `limit` is days.
    pub(crate) fn to_node(mut address: DatabaseAddress, limit: Duration) -> Self {
        let config = &mut address.config;
        let settings = set(std::iter::empty(), limit);
        config.connect_timeout(NODE_ANSWERS);
        config.keepalives_idle(NODE_ANSWERS);
        config.keepalives_interval(NODE_ANSWERS);
        config.tcp_user_timeout(NODE_LOST);
        if config.get_application_name().is_none() {
            config.application_name("hark");
        }
        Self::with(address, settings, None, limit.saturating_add(Duration::from_secs(5)))
    }

    /// Makes a connector for a worker of the cluster to which the database belongs. Its sessions
    /// have the same settings. Their statements have one plan for all values.
    pub(crate) fn to_worker(&self, worker: &NodeAddress) -> Self {
        let (old, mut address) = (&self.address.config, self.address.of_node(worker, None));
        let config = &mut address.config;
        if let Some(limit) = old.get_connect_timeout() {
            config.connect_timeout(*limit);
        }
        config.keepalives_idle(old.get_keepalives_idle());
        config.tcp_user_timeout(self.timeout);
        Self { address, ..self.on_shards() }
    }

    /// Makes a connector for shards that the database itself has.
    pub(crate) fn on_shards(&self) -> Self {
        // PostgreSQL has no useful statistics of a shard that was just filled or moved.
        let settings = "SET plan_cache_mode = 'force_generic_plan';SET enable_seqscan = 'off';";
        let settings = format!("{}{settings}", self.settings);
        Self { settings, opened_in: Arc::default(), ..self.clone() }
    }

    fn with(
        address: DatabaseAddress,
        settings: String,
        schema: Option<String>,
        timeout: Duration,
    ) -> Self {
        let (opened_in, statement_times) = (Arc::default(), Arc::default());
        Self { address, settings, schema, timeout, opened_in, statement_times }
    }

    /// Opens a session.
    pub(crate) fn open(&self) -> Result<DatabaseSession, StatementError> {
        self.open_within(self.timeout)
    }

    /// Opens a session, or fails after `limit`. Without `limit`, a suspended server could block the
    /// caller: it accepts connections but does not answer.
    pub(crate) fn open_within(&self, limit: Duration) -> Result<DatabaseSession, StatementError> {
        let late = || StatementError::Late(limit);
        self.open_watched(limit, limit, &mut || true)?.ok_or_else(late)
    }

    /// Opens a session, or fails after `limit`. Calls `look` at intervals until then, and returns
    /// `None` if `look` returns false.
    pub(crate) fn open_watched(
        &self,
        limit: Duration,
        every: Duration,
        look: &mut dyn FnMut() -> bool,
    ) -> Result<Option<DatabaseSession>, StatementError> {
        let runtime = ConnectionRuntime::new()?;
        let (started, warnings) = (Instant::now(), SessionWarnings::default());
        let opening = async {
            let (client, connection) = self.address.connect().await?;
            // The task ends together with the session. The thread that waits for a result receives
            // the errors of the task.
            tokio::spawn(warnings.clone().follow(connection));
            let mark = self.prepare(&client).await?;
            Ok::<_, StatementError>((client, mark))
        };
        let timed = async { tokio::time::timeout(limit, opening).await };
        let Some(opened) = runtime.watch(timed, every, look)? else { return Ok(None) };
        let (client, mark) = opened.map_err(|_| StatementError::Late(limit))??;
        self.note_opened(started);
        let times = Arc::clone(&self.statement_times);
        let mut session = DatabaseSession::new(client, mark, runtime, self.timeout, times);
        session.warnings = warnings;
        Ok(Some(session))
    }

    /// Notes how long the opening of a session took, from `started` until now.
    pub(crate) fn note_opened(&self, started: Instant) {
        let time = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.opened_in.store(time, Ordering::Relaxed);
    }

    /// Time limit of an attempt to open a session while the database does not answer. The limit is
    /// short: if packets are lost, an attempt sends them again only after growing pauses, but a new
    /// attempt sends its packets at once.
    pub(crate) fn probe_max(&self) -> Duration {
        let usual = Duration::from_millis(self.opened_in.load(Ordering::Relaxed));
        usual.saturating_mul(4).max(PROBE_MIN).min(self.timeout / 2)
    }

    /// Time limit of a round trip, and of opening a session.
    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Sets the settings of a session, and checks that they are in effect, before any other
    /// statement. Returns the session's mark: a random value in a setting that has no other
    /// purpose.
    ///
    /// The settings are not startup parameters, because a pooler may refuse or ignore startup
    /// parameters.
    pub(crate) async fn prepare(&self, client: &Client) -> Result<String, StatementError> {
        let failed = |error: tokio_postgres::Error| StatementError::new(&error);
        let mark = getrandom::u64().map_err(|error| StatementError::Refused(error.to_string()))?;
        let mark = format!("{mark:016x}");
        let settings = format!("{}SET {MARK} = '{mark}'", self.settings);
        client.batch_execute(&settings).await.map_err(failed)?;
        let text =
            format!("SELECT current_setting('{MARK}', true), current_setting('search_path')");
        let rows = client.query(&text, &[]).await.map_err(failed)?;
        let Some(row) = rows.first() else { return Err(StatementError::Shared) };
        let (found, path): (Option<&str>, &str) = (row.get(0), row.get(1));
        let has_schema = self.schema.as_ref().is_none_or(|schema| schema == path);
        if found == Some(mark.as_str()) && has_schema {
            Ok(mark)
        } else {
            Err(StatementError::Shared)
        }
    }

    /// Opens another session, and fails if `session` thereby loses its settings. This happens
    /// behind a pooler that runs transactions of different sessions on the same connection. The
    /// opening ends at the deadline of `session`.
    pub(crate) fn must_be_apart(
        &self,
        session: &mut DatabaseSession,
    ) -> Result<(), StatementError> {
        let limit = session.deadline.map_or(self.timeout, Deadline::left).min(self.timeout);
        let other = self.open_within(limit)?;
        session.must_be_itself()?;
        drop(other);
        Ok(())
    }

    /// Returns this connector, with its statement durations counted together with those of `other`.
    pub(crate) fn noting_in(self, other: &Self) -> Self {
        Self { statement_times: Arc::clone(&other.statement_times), ..self }
    }

    pub(crate) fn address(&self) -> &DatabaseAddress {
        &self.address
    }

    /// Returns the database's name, without its password.
    pub(crate) fn name(&self) -> String {
        let hosts: Vec<String> = self.address.hosts().collect();
        format!("{}/{}", hosts.join(","), self.address.config.get_dbname().unwrap_or_default())
    }
}

/// Returns the SET statements for these settings, each with its semicolon.
fn set<'a>(
    settings: impl Iterator<Item = (&'a str, &'a str)>,
    statement_timeout: Duration,
) -> String {
    let mut all = format!("SET statement_timeout = {};", statement_timeout.as_millis());
    for (name, value) in settings {
        // Writing to a string cannot fail.
        let _ = write!(all, "SET {name} = '{value}';");
    }
    all
}
