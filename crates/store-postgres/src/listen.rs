//! Receives notifications that other processes have committed.
//!
//! A notification only wakes a thread, which reads the records after the last delivered number from
//! the table. So no record is missed if the connection is lost.

use std::sync::Weak;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use futures_util::future::poll_fn;
use hark_archive::limits::NEWS_STEP;
use hark_archive::store::NumberedRecord;
use tokio_postgres::types::ToSql;
use tokio_postgres::{AsyncMessage, Client, Row};

use crate::error::StatementError;
use crate::failover;
use crate::layout::SharedStatement;
use crate::news::numbered;
use crate::others::{self, ARRIVED};
use crate::parts::Parts;
use crate::state::PostgresState;
use crate::waiting::ConnectionRuntime;

/// Interval at which two conditions are checked: whether the store still exists, and whether a
/// notification was missed.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Wait before reconnecting after a lost connection.
const RETRY: Duration = Duration::from_millis(500);

/// Time after a lost connection in which other processes may still be reconnecting. They have lost
/// their connections, too, if the database was started anew or replaced.
const RETURN_TIME: Duration = Duration::from_secs(30);

/// The content of the notification that a process has committed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct CommitNotice {
    seq: i64,
    /// Whether the commit deleted records.
    deleted: bool,
    /// The version of the list of parts.
    parts: i64,
    /// The timeline to which the number belongs; 0 if the sender is a version of Hark without
    /// timelines.
    line: i64,
}

impl CommitNotice {
    fn read(words: &str) -> Option<Self> {
        let mut fields = words.split(' ').map(str::parse::<i64>);
        let mut next = || fields.next()?.ok();
        let (seq, deleted, parts) = (next()?, next()? != 0, next()?);
        Some(Self { seq, deleted, parts, line: next().unwrap_or(0) })
    }
}

/// A notification.
enum Notice {
    Commit(CommitNotice, i32),
    /// Another process is going to write. The value is the PID of the PostgreSQL backend that
    /// serves the other process.
    Arrived(i32),
}

impl Notice {
    fn read(words: &str, process: i32) -> Option<Self> {
        if words == ARRIVED {
            return Some(Self::Arrived(process));
        }
        Some(Self::Commit(CommitNotice::read(words)?, process))
    }
}

/// Listens for notifications until the store is dropped.
pub(crate) fn run(inner: &Weak<PostgresState>, schema: &str) {
    let mut lost = None;
    while let Some(strong) = inner.upgrade() {
        let door = strong.pool.door().clone();
        drop(strong);
        let runtime = ConnectionRuntime::new();
        let ended = runtime.and_then(|it| it.wait(listen(inner, &door, schema, lost))?);
        if let Err(fault) = ended {
            tracing::debug!(%fault, "not listening to other processes");
            if let Some(inner) = inner.upgrade() {
                // Without notifications, this process would not learn of a new writer, so it
                // assumes other writers. After a restart of the database, another node's session
                // may have the PID that the session for commits had before.
                inner.others.note(true);
                inner.writer_process.store(0, Ordering::Relaxed);
                inner.pool.note(&fault);
                *inner.away.lock() = Some(fault.to_string());
            }
            lost = Some(Instant::now());
            std::thread::sleep(RETRY);
        }
    }
}

async fn listen(
    inner: &Weak<PostgresState>,
    door: &crate::connector::Connector,
    schema: &str,
    lost: Option<Instant>,
) -> Result<(), StatementError> {
    let failed = |error: tokio_postgres::Error| StatementError::new(&error);
    let (limit, started) = (door.timeout(), Instant::now());
    let connecting = async { Ok(door.address().connect().await?) };
    let (client, mut connection) = in_time(limit, connecting).await?;
    let (said, mut notices) = tokio::sync::mpsc::channel(1_024);
    let driven = tokio::spawn(async move {
        while let Some(Ok(message)) = poll_fn(|context| connection.poll_message(context)).await {
            let AsyncMessage::Notification(note) = message else { continue };
            if let Some(notice) = Notice::read(note.payload(), note.process_id())
                // If the channel is full, the notification is dropped, and the regular check finds
                // the commit.
                && said.try_send(notice).is_err_and(|error| {
                    matches!(error, tokio::sync::mpsc::error::TrySendError::Closed(_))
                })
            {
                break;
            }
        }
    });
    in_time(limit, door.prepare(&client)).await?;
    door.note_opened(started);
    let listening = format!("LISTEN {schema}");
    in_time(limit, async { client.batch_execute(&listening).await.map_err(failed) }).await?;
    if let Some(inner) = inner.upgrade() {
        *inner.away.lock() = None;
        // Other processes may have deleted records before LISTEN was in effect.
        inner.forget_known();
        inner.wake();
    }
    let mut look_at = tokio::time::Instant::now();
    loop {
        let notice = tokio::time::timeout_at(look_at, notices.recv()).await;
        let Some(inner) = inner.upgrade() else { break };
        match notice {
            Ok(None) => return Err(StatementError::Away("the connection was lost".into())),
            Ok(Some(Notice::Arrived(process))) => {
                if inner.writer_process.load(Ordering::Relaxed) != process {
                    inner.others.note(true);
                }
            }
            Ok(Some(Notice::Commit(said, process))) => {
                if note_commit(&inner, &client, said, process).await? {
                    inner.wake();
                }
            }
            Err(_) => {
                look_at = tokio::time::Instant::now() + LOOK_EVERY;
                let is_returning = lost.is_some_and(|at| at.elapsed() < RETURN_TIME);
                if poll_news(&inner, &client, is_returning).await? {
                    inner.wake();
                }
            }
        }
    }
    driven.abort();
    Ok(())
}

/// Applies a notification that a process has committed. Returns whether there are new puts.
async fn note_commit(
    inner: &PostgresState,
    client: &Client,
    said: CommitNotice,
    process: i32,
) -> Result<bool, StatementError> {
    let ours = inner.writer_process.load(Ordering::Relaxed) == process;
    if !ours {
        inner.others.note(true);
    }
    if said.deleted && !ours {
        inner.forget_known();
    }
    if said.parts != inner.parts().version {
        let rows = query(inner, client, SharedStatement::Parts.text(), &[]).await?;
        inner.set_parts(Parts::of(&rows, said.parts));
    }
    let position = inner.current.now();
    // The commits of this process deliver their own puts. If a commit is durable although this
    // process received an error, the regular check finds its puts.
    Ok(said.line != position.line || (!ours && said.seq > position.seen))
}

/// Checks for other processes that write, and for missed notifications. Returns whether the writer
/// must be woken. With `is_returning`, processes without a session may write, too.
async fn poll_news(
    inner: &PostgresState,
    client: &Client,
    is_returning: bool,
) -> Result<bool, StatementError> {
    let state = format!("SELECT line, seq, {} FROM state", others::counted());
    let own = inner.writer_process.load(Ordering::Relaxed);
    let rows = query(inner, client, &state, &[&own]).await?;
    if let Some(row) = rows.first() {
        inner.others.note(is_returning || row.get::<_, i64>(2) > 0);
    }
    let position = inner.current.now();
    let there = rows.first().map(|row| (row.get::<_, i64>(0), row.get::<_, i64>(1)));
    // The two positions also differ if this process has seen puts that are missing in the database.
    let differs = there.is_some_and(|there| there != (position.line, position.seen));
    Ok(differs || inner.current.trouble().is_some())
}

/// Executes a query, with a time limit.
async fn query(
    inner: &PostgresState,
    client: &Client,
    text: &str,
    values: &[&(dyn ToSql + Sync)],
) -> Result<Vec<Row>, StatementError> {
    let failed = |error: tokio_postgres::Error| StatementError::new(&error);
    let answer = async { client.query(text, values).await.map_err(failed) };
    in_time(inner.pool.door().timeout(), answer).await
}

/// Waits for an answer of the database with a time limit, because a machine that hangs does not
/// close its connections.
async fn in_time<T>(
    limit: Duration,
    answer: impl Future<Output = Result<T, StatementError>>,
) -> Result<T, StatementError> {
    tokio::time::timeout(limit, answer).await.map_err(|_| StatementError::Late(limit))?
}

/// Reads the next puts of other processes, in order. If there are fewer than [`NEWS_STEP`], these
/// are all.
pub(crate) fn news(inner: &PostgresState) -> Result<Vec<NumberedRecord>, StatementError> {
    let most = i64::try_from(NEWS_STEP).unwrap_or(i64::MAX);
    inner.pool.with(|session| {
        // The first attempt may find another timeline, and the second attempt may begin a new
        // timeline.
        for _ in 0..3 {
            let position = inner.current.now();
            let news = inner.layout.news(session, position.seen, most)?;
            let Some((line, seq)) = news.at else { return Ok(Vec::new()) };
            if line != position.line || seq < position.seen {
                if !failover::follow(inner, session)? {
                    failover::renew_line(inner, session)?;
                }
            } else {
                inner.note_news(position, &news.puts);
                match news.puts.last() {
                    Some((last, _)) if news.puts.len() >= NEWS_STEP => {
                        inner.current.reached(position, *last);
                    }
                    // The last numbers may belong to records that are deleted.
                    _ => {
                        inner.current.reached(position, seq);
                        inner.current.caught_up();
                    }
                }
                return Ok(numbered(position, news.puts));
            }
        }
        Err(StatementError::Refused("its timeline changes again and again".into()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_commit_says_is_read() {
        let said = CommitNotice { seq: 7, deleted: true, parts: 3, line: 2 };
        assert_eq!(CommitNotice::read("7 1 3 2"), Some(said));
        assert_eq!(CommitNotice::read("7 1 3"), Some(CommitNotice { line: 0, ..said }));
        assert_eq!(CommitNotice::read("7 1"), None);
        assert_eq!(CommitNotice::read("x"), None);
    }
}
