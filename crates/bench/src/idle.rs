//! `hark bench idle`: the memory that an idle connection costs the server.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, bail};

use crate::args::IdleArgs;
use crate::report::{BenchReport, Column};
use crate::target::BenchTarget;
use crate::websocket::{ConnectionKind, RelayConnection, RelayMessage, put_text};

/// Number of connections opened before the measurement, so that one-time allocations of the server
/// do not count.
const FIRST: usize = 100;
/// Time for the server to release its buffers.
const SETTLE: Duration = Duration::from_secs(2);

const COLUMNS: [Column; 6] = [
    Column::plain("connections", "connections", ""),
    Column::compared("kib_each", "memory each", "KiB"),
    Column::plain("anonymous_kib_each", "... of the server's own", "KiB"),
    Column::plain("rss_mib", "server memory", "MiB"),
    Column::compared("open_us", "server CPU to open one", "us"),
    Column::plain("broken", "closed by the server", ""),
];

pub(crate) fn run(args: &IdleArgs) -> anyhow::Result<ExitCode> {
    if args.target.pid.is_empty() {
        bail!(
            "the memory of the server's process is measured: run this on the server's machine, \
             with --pid"
        );
    }
    let target = args.target.target()?;
    args.output.measure(async || measure(args, &target).await)
}

async fn measure(args: &IdleArgs, target: &BenchTarget) -> anyhow::Result<BenchReport> {
    let mut report = BenchReport::new("idle", &COLUMNS);
    target.describe(&mut report).await;
    report.setting("deflate", args.deflate);
    report.setting("subscribed", args.subscribed);
    // At most a fifth of the connections, so that small runs are possible.
    let mut first = open(args, target, FIRST.min(args.connections / 5)).await?;
    tokio::time::sleep(SETTLE).await;
    let before = target.memory().context("the server's memory could not be read")?;
    let start = target.start()?;
    let mut connections = open(args, target, args.connections).await?;
    let spent = target.stop(&start)?;
    tokio::time::sleep(SETTLE).await;
    let after = target.memory().context("the server's memory could not be read")?;
    let mut broken = 0;
    for connection in connections.iter_mut().chain(&mut first) {
        // Reads the received data. If the server has closed the connection, the error is immediate.
        let waited = tokio::time::timeout(Duration::ZERO, connection.next()).await;
        broken += u64::from(matches!(waited, Ok(Err(_))));
    }
    if broken > 0 {
        report.fault(format!("{broken} connections were closed by the server meanwhile"));
    }
    let count = args.connections as f64;
    let each = |before: u64, after: u64| (after as f64 - before as f64) / count;
    report.row(
        "all",
        &[
            Some(count),
            Some(each(before.rss, after.rss)),
            Some(each(before.anonymous, after.anonymous)),
            Some(after.rss as f64 / 1024.0),
            spent.server.map(|cpu| cpu.as_secs_f64() * 1e6 / count),
            Some(broken as f64),
        ],
    );
    Ok(report)
}

/// Opens `count` connections. With `--subscribed`, each subscribes and waits for its first answer.
async fn open(
    args: &IdleArgs,
    target: &BenchTarget,
    count: usize,
) -> anyhow::Result<Vec<RelayConnection>> {
    let mut req = Vec::new();
    put_text(&mut req, &[br#"["REQ","idle",{"kinds":[31338],"limit":1}]"#]);
    let mut all = Vec::with_capacity(count);
    for at in 0..count {
        let opened = target.connect(ConnectionKind::Quiet { deflate: args.deflate }).await;
        let mut connection = opened.with_context(|| {
            format!("connection {} of {count} (is `ulimit -Hn` high enough on both sides?)", at + 1)
        })?;
        if args.subscribed {
            connection.send(&req).await?;
            let answer = tokio::time::timeout(Duration::from_mins(1), async {
                loop {
                    match connection.next().await? {
                        // The client does not inflate messages, so any deflated answer counts as
                        // the EOSE.
                        RelayMessage::Eose(_) | RelayMessage::Other => return anyhow::Ok(()),
                        RelayMessage::Closed(text) | RelayMessage::Notice(text) => {
                            bail!("the relay refuses: {}", String::from_utf8_lossy(text))
                        }
                        _ => {}
                    }
                }
            });
            answer.await.context("no EOSE in a minute")??;
        }
        all.push(connection);
    }
    Ok(all)
}
