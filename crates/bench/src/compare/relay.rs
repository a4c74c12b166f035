//! A relay of a comparison: started alone in a process group of its own, and ended by the id of the
//! group.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};

use super::place::{self, ComparePlace, MARK};
use super::plan::{Placeholders, PlannedRelay};
use crate::process::Processes;
use crate::requests::request;
use crate::websocket::{ConnectionKind, RelayConnection, RelayMessage, Url};

/// How often a starting relay is asked whether it is ready.
const STEP: Duration = Duration::from_millis(5);
/// Maximum length of the output that a mark quotes, in bytes.
const QUOTED_BYTES: usize = 400;

/// A relay with its directories. It may be running or not.
pub(super) struct StartedRelay {
    pub(super) planned: PlannedRelay,
    pub(super) url: Url,
    places: Placeholders,
    mark: PathBuf,
    running: Option<Child>,
}

/// The times of a start, in ms.
#[derive(Clone, Copy, Debug)]
pub(super) struct StartTimes {
    pub(super) ready_ms: f64,
    /// The time until the first answer with an event, if one was awaited.
    pub(super) answer_ms: Option<f64>,
}

impl StartedRelay {
    /// Makes the relay's directories, without earlier files.
    pub(super) fn new(
        place: &ComparePlace,
        planned: &PlannedRelay,
        number: usize,
    ) -> anyhow::Result<Self> {
        let dir = place.relay(number)?;
        let data = planned.data.clone().unwrap_or_else(|| dir.join("data"));
        if planned.data.is_some() {
            place::empty(&data)?;
        }
        fs::create_dir_all(&data)?;
        fs::create_dir_all(dir.join("tmp"))?;
        // The port is free now, and other programs rarely get it before the relay does.
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let places = Placeholders { data, dir, port };
        for (file, text) in &planned.files {
            let path = places.dir.join(file);
            path.parent().map_or(Ok(()), fs::create_dir_all)?;
            fs::write(&path, places.fill(text))?;
        }
        let url = places.fill(&planned.address).parse().map_err(anyhow::Error::msg)?;
        let mark = place.path().to_owned();
        Ok(Self { planned: planned.clone(), url, places, mark, running: None })
    }

    pub(super) fn data(&self) -> &Path {
        &self.places.data
    }

    fn log(&self) -> PathBuf {
        self.places.dir.join("log")
    }

    /// Starts the relay and waits until it is ready. With `runtime`, also waits for the first answer
    /// that has an event.
    pub(super) fn start(
        &mut self,
        runtime: Option<&tokio::runtime::Runtime>,
    ) -> anyhow::Result<StartTimes> {
        if TcpStream::connect(&self.url.authority).is_ok() {
            bail!("another program already listens at {}", self.url.authority);
        }
        let mut command = self.command(&self.planned.command)?;
        let output = File::create(self.log())?;
        command.stdout(output.try_clone()?).stderr(output).process_group(0);
        let start = Instant::now();
        let child = command.spawn();
        self.running =
            Some(child.with_context(|| format!("{} could not be run", self.planned.command[0]))?);
        let until = start + Duration::from_secs(self.planned.ready_s);
        while !self.is_ready() {
            if self.has_ended() {
                bail!("it ended before it was ready");
            }
            if Instant::now() > until {
                bail!("it was not ready in {} s; {}", self.planned.ready_s, self.last_words());
            }
            std::thread::sleep(STEP);
        }
        let ready_ms = start.elapsed().as_secs_f64() * 1e3;
        let Some(runtime) = runtime else { return Ok(StartTimes { ready_ms, answer_ms: None }) };
        let first = first_answer(&self.url);
        let answered = async { tokio::time::timeout_at(until.into(), first).await };
        let answered = runtime.block_on(answered);
        answered.context("it answered no question with an event after its start")?;
        let answer_ms = Some(start.elapsed().as_secs_f64() * 1e3);
        Ok(StartTimes { ready_ms, answer_ms })
    }

    /// A command of the relay's entry, to be run in the relay's directory.
    fn command(&self, words: &[String]) -> anyhow::Result<Command> {
        let (program, args) = words.split_first().context("the command is empty")?;
        let mut command = Command::new(self.places.fill(program));
        for (variable, _) in std::env::vars_os() {
            // These variables are settings of another server of Hark on this machine.
            if variable.to_string_lossy().starts_with("HARK_") {
                command.env_remove(variable);
            }
        }
        command
            .args(args.iter().map(|arg| self.places.fill(arg)))
            .current_dir(&self.places.dir)
            .env("TMPDIR", self.places.dir.join("tmp"))
            .env(MARK, &self.mark)
            .stdin(Stdio::null());
        for (name, value) in &self.planned.env {
            command.env(name, self.places.fill(value));
        }
        Ok(command)
    }

    /// Returns the first line of the version command. `None` if there is no such command.
    pub(super) fn version(&self) -> Option<String> {
        if self.planned.version.is_empty() {
            return None;
        }
        let output = self.command(&self.planned.version).ok()?.output().ok()?;
        let text = [output.stdout, output.stderr].concat();
        Some(String::from_utf8_lossy(&text).lines().next().unwrap_or_default().to_owned())
    }

    fn is_ready(&self) -> bool {
        let said = match self.planned.ready.as_deref().map(|ready| self.places.fill(ready)) {
            Some(ready) if ready.starts_with("http://") => is_answered(&ready),
            Some(ready) if ready.starts_with("ws://") => true,
            Some(line) => fs::read(self.log())
                .is_ok_and(|log| memchr::memmem::find(&log, line.as_bytes()).is_some()),
            None => true,
        };
        said && TcpStream::connect(&self.url.authority).is_ok()
    }

    /// Whether the relay's first process has ended. The process is not reaped, so that its id
    /// remains reserved as the id of its group.
    pub(super) fn has_ended(&self) -> bool {
        let state = self.running.as_ref().and_then(|child| stat_field(child.id(), 0));
        self.running.is_some() && state.is_none_or(|state| state == "Z")
    }

    /// Quotes the end of the relay's output.
    pub(super) fn last_words(&self) -> String {
        let log = fs::read(self.log()).unwrap_or_default();
        let end = log.get(log.len().saturating_sub(QUOTED_BYTES)..).unwrap_or_default();
        format!("the end of its output: {}", String::from_utf8_lossy(end).trim())
    }

    /// Returns the ids of all processes of the relay's group.
    pub(super) fn processes(&self) -> Vec<u32> {
        let Some(group) = self.running.as_ref().map(Child::id) else { return Vec::new() };
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        let ids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        ids.filter(|id| stat_field(*id, 2).as_deref() == Some(&*group.to_string())).collect()
    }

    /// Returns the resident memory of all processes in MB.
    pub(super) fn memory_mb(&self) -> Option<f64> {
        let memory = Processes::new(&self.processes()).ok()?.memory()?;
        Some(memory.rss as f64 * 1.024 / 1e3)
    }

    /// Ends the relay with SIGTERM. Returns the time in ms.
    pub(super) fn stop(&mut self) -> anyhow::Result<f64> {
        let Some(child) = &self.running else { return Ok(0.0) };
        let start = Instant::now();
        signal("TERM", &child.id().to_string());
        let until = start + Duration::from_secs(self.planned.stop_s);
        let ended = loop {
            if self.has_ended() {
                break Ok(start.elapsed().as_secs_f64() * 1e3);
            }
            if Instant::now() > until {
                break Err(anyhow::anyhow!("it did not end in {} s", self.planned.stop_s));
            }
            std::thread::sleep(STEP);
        };
        self.kill();
        ended
    }

    /// Ends all processes of the relay with SIGKILL.
    pub(super) fn kill(&mut self) {
        let Some(mut child) = self.running.take() else { return };
        // The first process may have ended already, while others of its group still run.
        let _ = child.kill();
        signal("KILL", &format!("-{}", child.id()));
        let _ = child.wait();
    }
}

impl Drop for StartedRelay {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Sends a signal to a process, or to a group if the id begins with a minus sign.
fn signal(name: &str, id: &str) {
    let mut shell = Command::new("sh");
    shell.args(["-c", r#"kill -s "$0" -- "$1""#, name, id]);
    // The process may have ended meanwhile.
    let _ = shell.stderr(Stdio::null()).status();
}

/// Returns a field of /proc/PID/stat after the program's name: 0 is the state, and 2 is the group.
fn stat_field(process: u32, field: usize) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    stat.rsplit(')').next()?.split_whitespace().nth(field).map(str::to_owned)
}

/// Whether an http:// address answers with status 200.
fn is_answered(address: &str) -> bool {
    let ask = || -> Option<bool> {
        let url = Url::http(address).ok()?;
        let mut stream = TcpStream::connect(&url.authority).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(2))).ok()?;
        let (path, host) = (&url.path, &url.authority);
        let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).ok()?;
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).ok()?;
        Some(answer.ends_with(b" 200"))
    };
    ask().unwrap_or(false)
}

/// Asks for one event until an answer has an event.
async fn first_answer(url: &Url) {
    let request = request(0, r#"{"kinds":[1],"limit":1}"#);
    let ask = async || -> anyhow::Result<bool> {
        let mut connection = RelayConnection::open(url, ConnectionKind::Busy).await?;
        connection.send(&request.req).await?;
        loop {
            match connection.next().await? {
                RelayMessage::Event(_) => return Ok(true),
                RelayMessage::Eose(_) | RelayMessage::Closed(_) | RelayMessage::Notice(_) => {
                    return Ok(false);
                }
                _ => {}
            }
        }
    };
    while !ask().await.unwrap_or(false) {
        tokio::time::sleep(STEP).await;
    }
}
