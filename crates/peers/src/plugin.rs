//! Asks the operator's plugin about events, one after the other ([`hark_plugin`]). If the plugin
//! fails, does not answer, or answers with the id of another event, the event is refused, and the
//! plugin is restarted for the next event.

use std::sync::Arc;
use std::time::Duration;

use hark_archive::Id;
use hark_codec::nostr::{Event, EventArena};
use hark_networks::nostr::NostrRefusal;
use hark_plugin::{
    EventOrigin, PluginCommand, PluginDecision, PluginFailure, PluginLog, PluginProcess, question,
};
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep_until, timeout};

use crate::clock::now_s;

/// Maximum time for a plugin's answer to an event.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// The wait before a failed plugin is restarted. Each wait is twice the previous one, until the
/// plugin answers.
const RESTART: Duration = Duration::from_millis(100);
const RESTART_MAX: Duration = Duration::from_secs(10);

/// Where the events of a plugin come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PluginSource {
    /// A relay, by its URL, on a connection that stays open.
    Stream(String),
    /// A relay, by its URL, in a single exchange.
    Sync(String),
    /// This archive. The events are sent to a relay.
    Stored,
}

/// A plugin. The program is started for the first event.
pub struct EventPlugin {
    command: PluginCommand,
    source: PluginSource,
    log: Arc<PluginLog>,
    state: Mutex<PluginState>,
}

#[derive(Default)]
struct PluginState {
    running: Option<PluginProcess>,
    /// Number of failures since the last answer. `not_before` is the earliest time of the next
    /// restart.
    failures: u32,
    not_before: Option<Instant>,
}

/// Why an event did not pass a plugin.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct PluginRefusal {
    pub(crate) words: String,
    /// The event's id and time; `None` if the event cannot be parsed.
    pub(crate) event: Option<(Id, u64)>,
    /// Whether the plugin failed, and so has not decided about the event.
    pub(crate) is_failure: bool,
}

impl EventPlugin {
    /// Makes a plugin from a command.
    pub fn new(command: PluginCommand, source: PluginSource) -> Self {
        let log = Arc::new(PluginLog::new(&command.line));
        Self { command, source, log, state: Mutex::default() }
    }

    /// Asks the plugin whether an event passes. The error is the reason for a refusal.
    pub(crate) async fn accept(&self, json: &str) -> Result<(), PluginRefusal> {
        let event = Event::parse(json.as_bytes(), &mut EventArena::new())
            .map(|event| (*event.id(), event.created_at()));
        let event = match event {
            Ok(event) => event,
            Err(error) => {
                let refusal = NostrRefusal::from(error);
                let words = format!("the event cannot be read: {refusal}");
                return Err(PluginRefusal { words, event: None, is_failure: false });
            }
        };
        let (decided, event) = (self.decide(json, &event.0).await, Some(event));
        match decided {
            Ok(PluginDecision::Accept) => Ok(()),
            Ok(PluginDecision::Reject(words) | PluginDecision::ShadowReject(words)) => {
                Err(PluginRefusal { words, event, is_failure: false })
            }
            Err(failure) => {
                let words = format!("the plugin failed: {failure}");
                Err(PluginRefusal { words, event, is_failure: true })
            }
        }
    }

    /// Returns the plugin's decision. After a failure, the next call waits before it restarts the
    /// plugin. Without the wait, a broken plugin would refuse all queued events within moments.
    async fn decide(&self, event: &str, id: &Id) -> Result<PluginDecision, PluginFailure> {
        let mut state = self.state.lock().await;
        if let Some(not_before) = state.not_before.take() {
            sleep_until(not_before).await;
        }
        let asking = timeout(ANSWER_WITHIN, self.ask(&mut state, event, id)).await;
        let decided = asking.unwrap_or(Err(PluginFailure::Timeout(ANSWER_WITHIN)));
        match &decided {
            Ok(_) => {
                let failures = std::mem::take(&mut state.failures);
                if failures > 1 {
                    self.log.recovery(failures);
                }
            }
            Err(failure) => {
                let wait = (RESTART * 2_u32.saturating_pow(state.failures)).min(RESTART_MAX);
                state.not_before = Some(Instant::now() + wait);
                state.failures = (state.failures + 1).min(30);
                // Logs only the first two failures. The second message adds that the plugin is
                // restarted until it works.
                match state.failures {
                    1 => self
                        .log
                        .failure(failure, "the event is refused, and the plugin is started again"),
                    2 => self.log.failure(
                        failure,
                        "the event is refused, and the plugin is started again until it works",
                    ),
                    _ => {}
                }
            }
        }
        decided
    }

    async fn ask(
        &self,
        state: &mut PluginState,
        event: &str,
        id: &Id,
    ) -> Result<PluginDecision, PluginFailure> {
        if let Some(process) = state.running.take_if(hark_plugin::PluginProcess::is_outdated) {
            process.end().await;
        }
        let mut process = match state.running.take() {
            Some(process) => process,
            None => PluginProcess::start(&self.command, &self.log)?,
        };
        let source = match &self.source {
            PluginSource::Stream(url) => EventOrigin::Stream(url),
            PluginSource::Sync(url) => EventOrigin::Sync(url),
            PluginSource::Stored => EventOrigin::Stored,
        };
        let question = question::line(event.as_bytes(), now_s(), source, None);
        let decided = process.ask(id, &question).await?;
        state.running = Some(process);
        Ok(decided)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use hark_codec::crypto::KeyPair;
    use hark_codec::nostr::EventDraft;
    use tokio::sync::{Semaphore, mpsc};
    use tokio_tungstenite::tungstenite::Utf8Bytes;

    use super::*;
    use crate::feed::MissedEvents;
    use crate::intake::{IntakeQueue, Origin, Wanted};
    use crate::message;
    use crate::route::{AnswerRoutes, SubscriptionAnswer};

    fn event(content: &str) -> String {
        let (keys, mut json) = (KeyPair::from_secret([1; 32]).unwrap(), Vec::new());
        EventDraft { created_at: 1, kind: 1, tags: &[], content }.sign(&keys, &mut json);
        String::from_utf8(json).unwrap()
    }

    fn run_by(line: &str) -> EventPlugin {
        let command = PluginCommand { line: line.into(), folder: None };
        EventPlugin::new(command, PluginSource::Stream("wss://relay.example".into()))
    }

    #[tokio::test]
    async fn a_plugin_decides_and_is_started_again_after_it_failed() {
        let script = r#"while read -r line; do
            id=${line#*'"id":"'}; id=${id%%'"'*}
            case "$line" in
                *good*) echo '{"id":"'$id'","action":"accept"}';;
                *end*) exit 1;;
                *late*) echo '{"id":"00","action":"accept"}';;
                *) echo '{"id":"'$id'","action":"reject","msg":"blocked: not this"}';;
            esac
        done"#;
        let plugin = run_by(script);
        let said = async |content| plugin.accept(&event(content)).await;
        assert_eq!(plugin.accept(&event("good").replace(",\"", "\n,\"")).await, Ok(()));
        let refusal = said("bad").await.unwrap_err();
        assert_eq!((refusal.words.as_str(), refusal.is_failure), ("blocked: not this", false));
        for fails in ["end", "late"] {
            let refusal = said(fails).await.unwrap_err();
            assert!(refusal.is_failure && refusal.words.contains("failed"), "{refusal:?}");
            assert_eq!(said("good").await, Ok(()), "after {fails}");
        }
        let broken = run_by("read -r line; echo no");
        let refusal = broken.accept(&event("x")).await.unwrap_err();
        assert!(refusal.words.contains("its answer is no"), "{refusal:?}");
        assert_eq!(broken.accept("{}").await.unwrap_err().event, None);
    }

    #[tokio::test]
    async fn an_event_that_makes_it_fail_does_not_choose_what_is_compared_again() {
        let (mut routes, (to, mut answers)) = (AnswerRoutes::default(), mpsc::unbounded_channel());
        routes.subscriptions.insert("h1".into(), to);
        let text = Utf8Bytes::from(format!("[\"EVENT\",\"h1\",{}]", event("x")));
        let queue = IntakeQueue::failing(run_by("exit 1"));
        for (missed_from, expected) in [(0, 1), (1_700_000_000, 1_700_000_000)] {
            let permit = Arc::new(Semaphore::new(1)).try_acquire_owned().unwrap();
            routes.pass(message::read(&text).unwrap(), &text, permit);
            let Some((SubscriptionAnswer::Event(event), _)) = answers.recv().await else {
                panic!("no event")
            };
            let missed = Arc::<MissedEvents>::default();
            let origin = Origin {
                meter: Arc::default(),
                wanted: Wanted::Matching(Arc::default()),
                seen: None,
                missed: Some(Arc::clone(&missed)),
                missed_from,
                protected: false,
            };
            queue.put(event, origin).await.unwrap();
            assert_eq!(missed.take(), Some(expected));
        }
    }
}
