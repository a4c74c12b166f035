//! The tables and charts of the report.

use super::case::{Case, FORMS};
use super::checked::{CheckedSetup, MeasuredSetup};
use super::costs::FormCosts;
use super::model::{QuestionCpu, ServerCores, ServerCount, Throughput};
use super::round::RoundTotals;
use crate::report::{BarChart, BenchReport, ChartBar, Column, ReportSection};

/// The figures of a case: those that the load tester k6 prints, and the events of an answer.
pub(super) const TIMES: [Column; 10] = [
    Column::plain("count", "count", ""),
    Column::plain("success_percent", "success", "%"),
    Column::plain("avg_ms", "avg", "ms"),
    Column::plain("min_ms", "min", "ms"),
    Column::compared("med_ms", "med", "ms"),
    Column::plain("max_ms", "max", "ms"),
    Column::plain("p90_ms", "p(90)", "ms"),
    Column::compared("p95_ms", "p(95)", "ms"),
    Column::plain("per_s", "questions/s", ""),
    Column::plain("events", "events", ""),
];

const COSTS: [Column; 11] = [
    Column::plain("hark_cpu_ms", "Hark", "CPU ms"),
    Column::plain("database_cpu_ms", "database", "CPU ms"),
    Column::plain("workers_cpu_ms", "workers", "CPU ms"),
    Column::plain("busiest_percent", "busiest", "%"),
    Column::plain("events", "events", ""),
    Column::plain("pages", "pages", ""),
    Column::plain("hark_received_kb", "to Hark", "KB"),
    Column::plain("hark_statements", "statements", ""),
    Column::plain("hark_round_trips", "round trips", ""),
    Column::plain("coordinator_received_kb", "from workers", "KB"),
    Column::plain("shards", "shards", ""),
];

const MODEL: [Column; 10] = [
    Column::plain("hark_per_s", "Hark", "/s"),
    Column::plain("database_per_s", "database", "/s"),
    Column::plain("workers_per_s", "workers", "/s"),
    Column::plain("predicted_per_s", "predicted", "/s"),
    Column::plain("measured_per_s", "measured", "/s"),
    Column::plain("ratio", "ratio", "x"),
    Column::plain("beside_one_pair", "beside 1 pair", "x"),
    Column::plain("beside_smallest", "beside the smallest", "x"),
    Column::plain("database_used_percent", "database used", "%"),
    Column::plain("busiest_used_percent", "busiest used", "%"),
];

/// Adds the row of a case.
pub(super) fn add_case(
    report: &mut BenchReport,
    setup: &str,
    case: Case,
    totals: &RoundTotals,
    seconds: f64,
) {
    let times = &totals.times;
    let answered = (totals.asked - totals.failed) as f64;
    let figures = [
        Some(totals.asked as f64),
        (totals.asked > 0).then(|| answered / totals.asked as f64 * 100.0),
        times.mean_ms(),
        times.least_ms(),
        times.at_ms(0.5),
        times.most_ms(),
        times.at_ms(0.9),
        times.at_ms(0.95),
        (seconds > 0.0).then(|| answered / seconds),
        totals.each(totals.events as f64),
    ];
    report.row(format!("{setup}: {}", case.name()), &figures);
}

/// Adds a chart for each case: the medians of all setups.
pub(super) fn add_charts(report: &mut BenchReport, cases: &[Case], setups: &[MeasuredSetup]) {
    for case in cases {
        let bar = |setup: &MeasuredSetup| {
            let name = format!("{}: {}", setup.name, case.name());
            let row = report.rows().iter().find(|row| row.name == name)?;
            let value = row.figures.get(4).copied().flatten()?;
            Some(ChartBar { name: setup.name.clone(), value, is_own: true })
        };
        let bars = setups.iter().filter_map(bar).collect();
        report.chart(BarChart { name: case.name(), unit: "ms", bars });
    }
}

/// Adds the table of the costs of questions.
pub(super) fn add_costs(report: &mut BenchReport, setups: &[MeasuredSetup]) {
    let mut table = BenchReport::new("cases", &COSTS);
    for setup in setups {
        for costs in &setup.costs {
            table.row(format!("{}: {}", setup.name, costs.form.name()), &cost_figures(costs));
        }
    }
    table.note(
        "Each figure is for one question, with 5 questions at once. database: PostgreSQL without \
         Citus, or the coordinator. workers: all workers together. busiest: the busiest worker's \
         share of the workers' CPU. to Hark, from workers: all bytes of these connections. \
         statements, round trips: between Hark and its database. shards: statements of the \
         coordinator to its workers, one for each read of a shard.",
    );
    report.section(ReportSection { key: "costs", title: "What a question costs", report: table });
}

fn cost_figures(costs: &FormCosts) -> [Option<f64>; 11] {
    let (hark, workers) = (costs.hark_traffic, costs.worker_traffic);
    [
        Some(costs.cpu.hark_ms),
        Some(costs.cpu.database_ms),
        costs.busiest_share.map(|_| costs.cpu.workers_ms),
        costs.busiest_share.map(|share| share * 100.0),
        Some(costs.events),
        Some(costs.pages),
        hark.map(|traffic| traffic.received_bytes / 1e3),
        hark.map(|traffic| traffic.statements),
        hark.map(|traffic| traffic.round_trips),
        workers.map(|traffic| traffic.received_bytes / 1e3),
        workers.map(|traffic| traffic.statements),
    ]
}

/// Adds the table of predicted and measured throughput, with its charts.
pub(super) fn add_model(report: &mut BenchReport, cores: ServerCores, setups: &[CheckedSetup]) {
    let mut table = BenchReport::new("cases", &MODEL);
    for form in FORMS {
        let name = format!("{}, {} cores a server", form.name(), cores.postgres);
        let per_s_of = |setup: Option<&CheckedSetup>| Some(setup?.measured_of(form)?.per_s);
        let one_pair = per_s_of(setups.iter().find(|of| of.count == ServerCount::Pairs(1)));
        let smallest = setups.iter().filter(|of| of.count.workers() > 0);
        let smallest = per_s_of(smallest.min_by_key(|of| of.count.workers()));
        let mut chart = BarChart { name, unit: "questions/s", bars: Vec::new() };
        for setup in setups {
            let of_kind =
                |of: &&CheckedSetup| (of.count.workers() > 0) == (setup.count.workers() > 0);
            let costs = setups.iter().filter(of_kind).filter_map(|of| of.cpu_of(form));
            let Some(cpu) = QuestionCpu::mean(costs) else { continue };
            let busiest = setup.busiest_of(form);
            let predicted = Throughput::predict(cpu, cores, setup.count, busiest);
            let measured = setup.measured_of(form);
            let per_s = predicted.per_s();
            table.row(
                format!("{}: {}", form.name(), setup.name),
                &[
                    Some(predicted.hark_per_s),
                    Some(predicted.database_per_s),
                    predicted.workers_per_s,
                    Some(per_s),
                    measured.map(|measured| measured.per_s),
                    measured.map(|measured| measured.per_s / per_s),
                    measured.zip(one_pair).map(|(measured, one)| measured.per_s / one),
                    measured
                        .filter(|_| setup.count.workers() > 0)
                        .zip(smallest)
                        .map(|(measured, smallest)| measured.per_s / smallest),
                    measured.map(|measured| measured.database_used * 100.0),
                    measured
                        .filter(|_| setup.count.workers() > 0)
                        .map(|measured| measured.busiest_used * 100.0),
                ],
            );
            let mut bar = |what: &str, value, is_own| {
                let name = format!("{}, {what}", setup.name);
                chart.bars.push(ChartBar { name, value, is_own });
            };
            bar("predicted", per_s, false);
            if let Some(measured) = measured {
                bar("measured", measured.per_s, true);
            }
        }
        report.chart(chart);
    }
    table.note(format!(
        "The questions a second that each kind of server has CPU for: {} of a core for each \
         worker and each PostgreSQL without Citus, {} for the coordinator and {} for each Hark. \
         The smallest of these numbers is the prediction, from the mean costs of all pairs, or of \
         all clusters, with these bounds. measured: a run with these bounds, but without a bound \
         for Hark. ratio: measured divided by predicted. beside 1 pair, beside the smallest: \
         measured, divided by the result of one pair or of the smallest cluster. database used, \
         busiest used: the share of its CPU that the database or coordinator, and the busiest \
         worker, has used: a server that has used nearly all of its CPU was the limit.",
        cores.postgres, cores.coordinator, cores.hark
    ));
    let title = "How many questions a second servers answer, by their CPU";
    report.section(ReportSection { key: "model", title, report: table });
}
