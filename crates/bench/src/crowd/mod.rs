//! `hark bench crowd`: whether a few heavy clients slow down the many normal ones. The normal
//! clients are measured alone, and beside heavy clients of each habit.

mod client;
mod habit;
mod material;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use tokio::task::JoinSet;

use self::client::{ClientTotals, CrowdClient};
use self::habit::{HABITS, HabitTotals, HeavyClient};
use self::material::CrowdMaterial;
use crate::args::{CrowdArgs, Habit};
use crate::report::{BenchReport, Column, ReportSection};
use crate::target::{BenchTarget, TimeSpent};

/// The longest wait for the last answers of a round.
const PATIENCE: Duration = Duration::from_mins(1);

const COLUMNS: [Column; 9] = [
    Column::plain("asked", "questions", ""),
    Column::compared("p50_ms", "p50", "ms"),
    Column::compared("p99_ms", "p99", "ms"),
    Column::plain("max_ms", "longest", "ms"),
    Column::plain("p99_to_alone", "p99 to alone", "x"),
    Column::plain("published", "events published", ""),
    Column::compared("ok_p50_ms", "time to OK, p50", "ms"),
    Column::compared("ok_p99_ms", "time to OK, p99", "ms"),
    Column::plain("cores", "server CPU", "cores"),
];

const HEAVY_COLUMNS: [Column; 3] = [
    Column::plain("done", "done", ""),
    Column::compared("done_per_s", "done", "per second"),
    Column::plain("refused", "refused", ""),
];

/// The heavy clients of a round, and the round's name in the tables.
struct CrowdRound {
    name: String,
    habits: Vec<Habit>,
}

/// The outcome of a round: the figures of the normal clients, and those of each heavy habit.
struct RoundOutcome {
    clients: ClientTotals,
    heavy: Vec<(Habit, HabitTotals)>,
    spent: TimeSpent,
}

pub(crate) fn run(args: &CrowdArgs) -> anyhow::Result<ExitCode> {
    if args.output.runs > 1 {
        bail!("each run needs new events: repeat the command with --loaded, and without --runs");
    }
    let target = args.target.target()?;
    args.output.measure(async || measure(args, &target).await)
}

/// Makes the rounds: alone, beside each habit, beside all of several habits, and alone again.
fn rounds(habits: &[Habit]) -> Vec<CrowdRound> {
    let round = |name: String, habits: &[Habit]| CrowdRound { name, habits: habits.to_vec() };
    let mut all = vec![round("alone".into(), &[])];
    all.extend(habits.iter().map(|habit| round(format!("beside {}", habit.name()), &[*habit])));
    if habits.len() > 1 {
        all.push(round("beside all of these".into(), habits));
    }
    all.push(round("alone again".into(), &[]));
    all
}

async fn measure(args: &CrowdArgs, target: &BenchTarget) -> anyhow::Result<BenchReport> {
    let mut report = BenchReport::new("crowd", &COLUMNS);
    target.describe(&mut report).await;
    let material = Arc::new(CrowdMaterial::load(args, target).await?);
    for (key, value) in [("clients", args.clients), ("heavy", args.heavy)] {
        report.setting(key, value);
    }
    report.setting("file", args.file.display().to_string());
    report.setting("events_before", material.loaded);
    report.setting("pace_s", args.pace);
    report.setting("seconds", args.seconds);

    let mut clients = Vec::new();
    for number in 0..args.clients {
        clients.push(CrowdClient::open(target, number, material.clone()).await?);
    }
    let mut heavy_report = BenchReport::new("crowd", &HEAVY_COLUMNS);
    let mut alone_p99 = None;
    let habits = if args.habits.is_empty() { &HABITS[..] } else { &args.habits };
    for round in rounds(habits) {
        let outcome = play(args, target, &mut clients, &round, &material).await?;
        let figures = figures(&outcome, alone_p99);
        alone_p99 = alone_p99.or(outcome.clients.asked.at_ms(0.99));
        outcome.clients.refusals.add_to(&mut report, &round.name);
        if outcome.clients.asked.at_ms(0.5).is_none() {
            report.fault(format!("{}: no question was answered", round.name));
        }
        report.row(&*round.name, &figures);
        report.curve(outcome.clients.asked.curve(&round.name));
        for (habit, totals) in &outcome.heavy {
            let done = totals.done as f64;
            let refused = totals.refused as f64;
            let row = [Some(done), Some(done / args.seconds), Some(refused)];
            heavy_report.row(format!("{}: {}", round.name, habit.unit()), &row);
            if let Some(end) = &totals.end {
                report.note(format!("{}: a client ended early: {end}", round.name));
            }
        }
    }
    if material.has_ended() {
        report.note("The file has ended: not all events could be published. Use a longer file.");
    }
    report.section(ReportSection {
        key: "heavy",
        title: "The heavy clients in each round",
        report: heavy_report,
    });
    Ok(report)
}

/// Runs a round with all clients.
async fn play(
    args: &CrowdArgs,
    target: &BenchTarget,
    clients: &mut Vec<CrowdClient>,
    round: &CrowdRound,
    material: &Arc<CrowdMaterial>,
) -> anyhow::Result<RoundOutcome> {
    let mut heavy_clients = Vec::new();
    for (at, habit) in round.habits.iter().enumerate() {
        for number in 0..args.heavy {
            let number = at * args.heavy + number;
            let left = usize::try_from(material.heavy_share)? / args.heavy;
            let client = HeavyClient::open(target, *habit, number, material.clone(), left).await?;
            heavy_clients.push(client);
        }
    }
    let start = target.start()?;
    let began = Instant::now();
    let until = began + Duration::from_secs_f64(args.seconds);
    let pace = Duration::from_secs_f64(args.pace);
    let (mut normal, mut heavy) = (JoinSet::new(), JoinSet::new());
    let count = clients.len() as u32;
    for (at, client) in clients.drain(..).enumerate() {
        // The due times of the clients are spread evenly over the pace.
        let first = began + pace * at as u32 / count;
        normal.spawn(client.send_requests(first, pace, until));
    }
    for client in heavy_clients {
        heavy.spawn(client.follow(until));
    }
    let mut outcome = RoundOutcome {
        clients: ClientTotals::default(),
        heavy: round.habits.iter().map(|habit| (*habit, HabitTotals::default())).collect(),
        spent: target.stop(&start)?,
    };
    let end = tokio::time::Instant::from_std(until + PATIENCE);
    let answers = async {
        while let Some(client) = normal.join_next().await {
            let (client, totals) = client.context("a client has panicked")??;
            outcome.clients.add(totals);
            clients.push(client);
        }
        outcome.spent = target.stop(&start)?;
        while let Some(client) = heavy.join_next().await {
            let (habit, totals) = client.context("a heavy client has panicked")?;
            if let Some((_, sum)) = outcome.heavy.iter_mut().find(|(other, _)| *other == habit) {
                sum.add(totals);
            }
        }
        anyhow::Ok(())
    };
    tokio::time::timeout_at(end, answers)
        .await
        .with_context(|| format!("{}: no answer in a minute", round.name))??;
    clients.sort_unstable_by_key(CrowdClient::number);
    Ok(outcome)
}

fn figures(outcome: &RoundOutcome, alone_p99: Option<f64>) -> [Option<f64>; 9] {
    let RoundOutcome { clients, spent, .. } = outcome;
    let p99 = clients.asked.at_ms(0.99);
    [
        Some(clients.asked.count() as f64),
        clients.asked.at_ms(0.5),
        p99,
        clients.asked.most_ms(),
        p99.zip(alone_p99).map(|(p99, alone)| p99 / alone),
        Some(clients.published.count() as f64),
        clients.published.at_ms(0.5),
        clients.published.at_ms(0.99),
        spent.server.map(|cpu| cpu.as_secs_f64() / spent.elapsed.as_secs_f64()),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_normal_clients_are_measured_alone_first_and_last() {
        let names = |habits: &[Habit]| -> Vec<String> {
            rounds(habits).into_iter().map(|round| round.name).collect()
        };
        assert_eq!(names(&[Habit::Search]), ["alone", "beside a search", "alone again"]);
        let all = rounds(&HABITS);
        assert_eq!(all.len(), HABITS.len() + 3);
        assert_eq!(all[HABITS.len() + 1].habits, HABITS);
        assert!(all[0].habits.is_empty() && all[all.len() - 1].habits.is_empty());
    }
}
