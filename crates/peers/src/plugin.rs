//! Runs the operator's plugin, a program that accepts or refuses events. The interface is that of
//! strfry's write policy plugins, so strfry's plugins work unchanged.
//!
//! The plugin reads one event a line on stdin,
//! `{"type":"new","event":{…},"receivedAt":…,"sourceType":…, "sourceInfo":…}`, and answers with one
//! line on stdout, `{"id":…,"action":"accept","msg":…}`. Any other action is a refusal. If the
//! plugin fails, does not answer, or answers with the id of another event, the event is refused,
//! and the plugin is restarted for the next event.

use std::process::Stdio;
use std::time::Duration;

use hark_archive::Id;
use hark_codec::hex;
use hark_codec::nostr::{Event, EventArena};
use hark_networks::nostr::NostrRefusal;
use serde::Deserialize;
use serde_json::json;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep_until, timeout};

use crate::clock::now_s;
use crate::connection::shortened;

/// Maximum time for a plugin's answer to an event.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// How long to wait for the exit of a plugin that no longer accepts events, so that its exit code
/// can be reported.
const END_WITHIN: Duration = Duration::from_millis(100);
/// The wait before a failed plugin is restarted. Each wait is twice the previous one, until the
/// plugin answers.
const RESTART: Duration = Duration::from_millis(100);
const RESTART_MAX: Duration = Duration::from_secs(10);
/// Maximum length of an answer, in bytes.
const LINE_BYTES_MAX: u64 = 64 << 10;

/// A plugin. The program is started for the first event.
pub struct EventPlugin {
    command: String,
    source: String,
    state: Mutex<PluginState>,
}

#[derive(Default)]
struct PluginState {
    running: Option<RunningPlugin>,
    /// Number of failures since the last answer. `not_before` is the earliest time of the next
    /// restart.
    failures: u32,
    not_before: Option<Instant>,
}

struct RunningPlugin {
    // The process, which is killed when this value is dropped.
    process: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

#[derive(Deserialize)]
struct PluginAnswer {
    #[serde(default)]
    id: String,
    action: String,
    #[serde(default)]
    msg: String,
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
    /// Makes a plugin from a command line, which a shell runs. `source` names the relay that the
    /// events come from or go to.
    pub fn new(command: &str, source: &str) -> Self {
        Self { command: command.into(), source: source.into(), state: Mutex::default() }
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
            Ok(None) => Ok(()),
            Ok(Some(words)) => Err(PluginRefusal { words, event, is_failure: false }),
            Err(words) => Err(PluginRefusal { words, event, is_failure: true }),
        }
    }

    /// Returns the plugin's reason for refusing an event, or `None` if the event passes. The error
    /// describes a failure of the plugin. After a failure, the next call waits before it restarts
    /// the plugin. Otherwise a broken plugin would cause the refusal of all events within moments.
    async fn decide(&self, event: &str, id: &Id) -> Result<Option<String>, String> {
        let mut state = self.state.lock().await;
        if let Some(not_before) = state.not_before.take() {
            sleep_until(not_before).await;
        }
        let decided = self.ask(&mut state, event, id).await;
        match &decided {
            Ok(_) => {
                let failures = std::mem::take(&mut state.failures);
                if failures > 1 {
                    tracing::info!(plugin = self.command, failures, "the plugin works again");
                }
            }
            Err(why) => {
                let wait = (RESTART * 2_u32.saturating_pow(state.failures)).min(RESTART_MAX);
                state.not_before = Some(Instant::now() + wait);
                state.failures = (state.failures + 1).min(30);
                // Logs only the first two failures. The second message adds that the plugin is
                // restarted until it works.
                if state.failures <= 2 {
                    let until = if state.failures == 1 { "" } else { ", until it works" };
                    tracing::warn!(
                        plugin = self.command,
                        "{why}; the event is refused, and the plugin is started again{until}"
                    );
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
    ) -> Result<Option<String>, String> {
        let mut process = match state.running.take() {
            Some(process) => process,
            None => self.start()?,
        };
        let failed = |why: String| format!("the plugin failed: {why}");
        let line = match timeout(ANSWER_WITHIN, process.ask(event, &self.source)).await {
            Ok(Ok(line)) => line,
            Ok(Err(error)) => return Err(failed(process.end(&error).await)),
            Err(_) => {
                return Err(failed(format!("no answer within {} s", ANSWER_WITHIN.as_secs())));
            }
        };
        let answer: PluginAnswer = serde_json::from_str(&line)
            .map_err(|_| failed(format!("its answer is {}", shortened(line.trim()))))?;
        if hex::decode_32(answer.id.as_bytes()) != Some(*id) {
            return Err(failed(format!(
                "it answered for another event, `{}`",
                shortened(&answer.id)
            )));
        }
        state.running = Some(process);
        Ok((answer.action != "accept").then(|| shortened(&answer.msg)))
    }

    fn start(&self) -> Result<RunningPlugin, String> {
        let started = Command::new("sh")
            .args(["-c", &self.command])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn();
        let failed = |error| format!("the plugin could not be started: {error}");
        let mut process = started.map_err(failed)?;
        match (process.stdin.take(), process.stdout.take()) {
            (Some(to), Some(from)) => Ok(RunningPlugin { process, to, from: BufReader::new(from) }),
            _ => Err("the plugin has no stdin or stdout".into()),
        }
    }
}

impl RunningPlugin {
    /// Describes why the plugin did not accept or answer an event.
    async fn end(&mut self, error: &std::io::Error) -> String {
        match timeout(END_WITHIN, self.process.wait()).await {
            Ok(Ok(status)) => format!("it ended ({status})"),
            _ => error.to_string(),
        }
    }

    async fn ask(&mut self, event: &str, source: &str) -> std::io::Result<String> {
        // JSON allows line ends between an event's tokens, but not within strings.
        let event = event.replace(['\n', '\r'], " ");
        let head = json!({
            "type": "new",
            "receivedAt": now_s(),
            "sourceType": "Stream",
            "sourceInfo": source,
        })
        .to_string();
        let head = head.strip_suffix('}').unwrap_or(&head);
        self.to.write_all(format!("{head},\"event\":{event}}}\n").as_bytes()).await?;
        self.to.flush().await?;
        let mut line = String::new();
        let read = (&mut self.from).take(LINE_BYTES_MAX).read_line(&mut line).await?;
        if read == 0 { Err(std::io::ErrorKind::UnexpectedEof.into()) } else { Ok(line) }
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
        let plugin = EventPlugin::new(script, "wss://relay.example");
        let said = async |content| plugin.accept(&event(content)).await;
        assert_eq!(plugin.accept(&event("good").replace(",\"", "\n,\"")).await, Ok(()));
        let refusal = said("bad").await.unwrap_err();
        assert_eq!((refusal.words.as_str(), refusal.is_failure), ("blocked: not this", false));
        for fails in ["end", "late"] {
            let refusal = said(fails).await.unwrap_err();
            assert!(refusal.is_failure && refusal.words.contains("failed"), "{refusal:?}");
            assert_eq!(said("good").await, Ok(()), "after {fails}");
        }
        let broken = EventPlugin::new("read -r line; echo no", "");
        let refusal = broken.accept(&event("x")).await.unwrap_err();
        assert!(refusal.words.contains("its answer is no"), "{refusal:?}");
        assert_eq!(broken.accept("{}").await.unwrap_err().event, None);
    }

    #[tokio::test]
    async fn an_event_that_makes_it_fail_does_not_choose_what_is_compared_again() {
        let (mut routes, (to, mut answers)) = (AnswerRoutes::default(), mpsc::unbounded_channel());
        routes.subscriptions.insert("h1".into(), to);
        let text = Utf8Bytes::from(format!("[\"EVENT\",\"h1\",{}]", event("x")));
        let queue = IntakeQueue::failing(EventPlugin::new("exit 1", ""));
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
