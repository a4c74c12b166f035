//! Renders a report as one self-contained HTML file: the table, and plots as SVG.

use std::fmt::Write as _;

use crate::report::{BarChart, BenchReport, Column};
use crate::words::figure;

const STYLE: &str = "\
:root{--fg:#1c1e21;--soft:#6b7280;--line:#e3e5e8;--bg:#fff;--own:#2563eb;--other:#f59e0b;--bad:#b91c1c}\
@media(prefers-color-scheme:dark){:root{--fg:#e6e7e9;--soft:#9aa1ab;--line:#33363b;--bg:#16181b;\
--own:#60a5fa;--other:#fbbf24;--bad:#f87171}}\
body{font:15px/1.5 system-ui,sans-serif;color:var(--fg);background:var(--bg);max-width:64rem;\
margin:2.5rem auto;padding:0 1.25rem}\
h1{font-size:1.5rem;margin:0 0 .25rem}h2{font-size:1.05rem;margin:2.25rem 0 .5rem}\
.soft{color:var(--soft)}.bad{color:var(--bad);font-weight:600}\
.wide{overflow-x:auto}table{border-collapse:collapse;font-variant-numeric:tabular-nums;width:100%}\
th,td{padding:.3rem .6rem;text-align:right;border-bottom:1px solid var(--line);white-space:nowrap}\
th:first-child,td:first-child{text-align:left}thead th{font-weight:600}\
thead small{display:block;font-weight:400;color:var(--soft)}\
svg{width:100%;height:auto;display:block}svg text{font:12px system-ui,sans-serif;fill:var(--fg)}\
svg .axis{fill:var(--soft)}svg line{stroke:var(--line)}.own{fill:var(--own)}.other{fill:var(--other)}\
path{fill:none;stroke-width:2}dl{display:grid;grid-template-columns:max-content 1fr;gap:.15rem 1rem}\
dt{color:var(--soft)}dd{margin:0;overflow-wrap:anywhere}";

/// Renders the whole page.
pub(crate) fn page(report: &BenchReport) -> String {
    let title = format!("hark bench {}", report.bench());
    let mut out = format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"/>\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\"/>\
         <title>{title}</title><style>{STYLE}</style></head>\n<body><h1>{title}</h1>\n"
    );
    let _ = writeln!(out, "<p class=\"soft\">hark {}</p>", hark::VERSION);
    for fault in report.faults() {
        let _ = writeln!(out, "<p class=\"bad\">Doubtful: {}</p>", escape(fault));
    }
    table(&mut out, report);
    for note in report.notes() {
        let _ = writeln!(out, "<p>{}</p>", escape(note));
    }
    for section in report.sections() {
        let _ = writeln!(out, "<h2>{}</h2>", escape(section.title));
        table(&mut out, &section.report);
        for note in section.report.notes() {
            let _ = writeln!(out, "<p>{}</p>", escape(note));
        }
    }
    report.charts().iter().for_each(|chart| draw(&mut out, chart));
    if report.rows().len() > 1 && report.charts().is_empty() {
        for (at, column) in report.columns().iter().enumerate() {
            if column.compared {
                bars(&mut out, report, at, *column);
            }
        }
    }
    curves(&mut out, report);
    out.push_str("<h2>Measured with</h2>\n<dl>");
    for (key, value) in report.settings() {
        let _ = writeln!(out, "<dt>{}</dt><dd>{}</dd>", escape(key), escape(&value));
    }
    out.push_str("</dl>\n</body></html>\n");
    out
}

/// Escapes text for HTML.
pub(crate) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

fn table(out: &mut String, report: &BenchReport) {
    let cells = report.table();
    out.push_str("<div class=\"wide\"><table><thead><tr>");
    for (head, unit) in cells[0].iter().zip(&cells[1]) {
        let _ = write!(out, "<th>{}<small>{}</small></th>", escape(head), escape(unit));
    }
    out.push_str("</tr></thead><tbody>\n");
    for row in &cells[2..] {
        out.push_str("<tr>");
        for cell in row {
            let _ = write!(out, "<td>{}</td>", escape(cell));
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</tbody></table></div>\n");
}

/// Draws a bar for each row, with the other run's bar below.
fn bars(out: &mut String, report: &BenchReport, column: usize, kind: Column) {
    const LABELS: f64 = 220.0;
    const WIDTH: f64 = 900.0;
    let values =
        report.rows().iter().flat_map(|row| [row.figures[column], report.other(row, column)]);
    let most = values.flatten().fold(0.0, f64::max);
    if most <= 0.0 {
        return;
    }
    let thick = if report.baseline_name().is_some() { 9.0 } else { 14.0 };
    let step = if report.baseline_name().is_some() { 28.0 } else { 22.0 };
    let height = report.rows().len() as f64 * step + 4.0;
    let _ = writeln!(out, "<h2>{}, {}</h2>", escape(kind.head), escape(kind.unit));
    if let Some(name) = report.baseline_name() {
        let _ = writeln!(
            out,
            "<p class=\"soft\">Above: this run. Below: {}. Shorter is less.</p>",
            escape(name)
        );
    }
    let _ = writeln!(
        out,
        "<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{} of each row\">",
        escape(kind.head)
    );
    for (at, row) in report.rows().iter().enumerate() {
        let y = at as f64 * step + 2.0;
        let _ = writeln!(
            out,
            "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>",
            LABELS - 10.0,
            y + 12.0,
            escape(&row.name)
        );
        let both = [("own", row.figures[column]), ("other", report.other(row, column))];
        for (slot, (class, value)) in both.into_iter().enumerate() {
            let Some(value) = value else { continue };
            let y = y + slot as f64 * (thick + 2.0);
            let width = value.max(0.0) / most * (WIDTH - LABELS - 80.0);
            let _ = writeln!(
                out,
                "<rect class=\"{class}\" x=\"{LABELS}\" y=\"{y}\" width=\"{width:.1}\" \
                 height=\"{thick}\" rx=\"2\"/><text class=\"axis\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
                LABELS + width + 6.0,
                y + thick - 1.0,
                figure(value)
            );
        }
    }
    out.push_str("</svg>\n");
}

/// Draws a chart. The scale is logarithmic, from a power of ten below the least figure.
fn draw(out: &mut String, chart: &BarChart) {
    const LABELS: f64 = 260.0;
    const WIDTH: f64 = 900.0;
    const STEP: f64 = 22.0;
    let values = || chart.bars.iter().map(|bar| bar.value).filter(|value| *value > 0.0);
    let (least, most) = (values().fold(f64::MAX, f64::min), values().fold(0.0, f64::max));
    if most <= 0.0 {
        return;
    }
    let low = (least / 2.0).log10().floor();
    let high = most.log10().ceil().max(low + 1.0);
    let height = chart.bars.len() as f64 * STEP + 4.0;
    let (name, unit) = (escape(&chart.name), escape(chart.unit));
    let _ = writeln!(
        out,
        "<h2>{name}</h2>\n<p class=\"soft\">{unit}, on a logarithmic scale. Shorter is less.</p>\n\
         <svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{name}, {unit}\">"
    );
    for (at, bar) in chart.bars.iter().enumerate() {
        let y = at as f64 * STEP + 2.0;
        let share = (bar.value.max(least).log10() - low) / (high - low);
        let width = share * (WIDTH - LABELS - 80.0);
        let class = if bar.is_own { "own" } else { "other" };
        let _ = writeln!(
            out,
            "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>\
             <rect class=\"{class}\" x=\"{LABELS}\" y=\"{y}\" width=\"{width:.1}\" height=\"14\" rx=\"2\"/>\
             <text class=\"axis\" x=\"{:.1}\" y=\"{}\">{}</text>",
            LABELS - 10.0,
            y + 12.0,
            escape(&bar.name),
            LABELS + width + 6.0,
            y + 12.0,
            figure(bar.value)
        );
    }
    out.push_str("</svg>\n");
}

/// Plots the latency distributions: the share of answers on the x axis, the time on a logarithmic y
/// axis.
fn curves(out: &mut String, report: &BenchReport) {
    const WIDTH: f64 = 900.0;
    const HEIGHT: f64 = 300.0;
    const LEFT: f64 = 60.0;
    for curve in report.curves() {
        let times = || curve.points.iter().copied().filter(|time| *time > 0.0);
        let (least, most) = (times().fold(f64::MAX, f64::min), times().fold(0.0, f64::max));
        if most <= 0.0 {
            continue;
        }
        let (low, high) =
            (least.log10().floor(), most.log10().ceil().max(least.log10().floor() + 1.0));
        let y = |time: f64| {
            let share = (time.max(least).log10() - low) / (high - low);
            20.0 + (1.0 - share) * (HEIGHT - 50.0)
        };
        let x = |share: f64| LEFT + share * (WIDTH - LEFT - 10.0);
        let _ = writeln!(out, "<h2>Latency, {}</h2>", escape(&curve.name));
        let _ = writeln!(
            out,
            "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"Latency by share of answers\">"
        );
        let mut power = low;
        while power <= high {
            let (at, label) = (y(10f64.powf(power)), figure(10f64.powf(power)));
            let _ = writeln!(
                out,
                "<line x1=\"{LEFT}\" x2=\"{}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>\
                 <text class=\"axis\" x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{label} ms</text>",
                WIDTH - 10.0,
                LEFT - 6.0,
                at + 4.0
            );
            power += 1.0;
        }
        for percent in [0, 25, 50, 75, 90, 99] {
            let _ = writeln!(
                out,
                "<text class=\"axis\" x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\">{percent} %</text>",
                x(f64::from(percent) / 100.0),
                HEIGHT - 8.0
            );
        }
        let last = curve.points.len().saturating_sub(1).max(1) as f64;
        let points = curve.points.iter().enumerate();
        let path: Vec<String> = points
            .map(|(at, time)| format!("{:.1},{:.1}", x(at as f64 / last), y(*time)))
            .collect();
        let _ = writeln!(out, "<path stroke=\"var(--own)\" d=\"M{}\"/></svg>", path.join(" L"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{ChartBar, Curve};

    #[test]
    fn a_page_holds_the_figures_the_plots_and_nothing_from_elsewhere() {
        let columns = [Column::compared("cpu_ms", "CPU", "ms")];
        let mut report = BenchReport::new("query", &columns);
        report.row("a <b> & \"c\"", &[Some(0.0712)]);
        report.row("latest", &[Some(1.5)]);
        let other = report.clone();
        report.compare("peer", &other);
        report.curve(Curve { name: "mixed".into(), points: vec![0.0, 0.1, 0.5, 20.0] });
        report.fault("12 requests were refused");
        report.setting("url", "ws://127.0.0.1:7777");
        let page = page(&report);
        for part in
            ["0.0712", "1.00x", "a &lt;b&gt; &amp; &quot;c&quot;", "12 requests", "ws://127"]
        {
            assert!(page.contains(part), "{part}: {page}");
        }
        assert_eq!(page.matches("<svg").count(), 2);
        assert_eq!(page.matches("<svg").count(), page.matches("</svg>").count());
        for banned in ["<script", "src=", "href=", "@import", "http://", "https://", "NaN"] {
            assert!(!page.contains(banned), "{banned}");
        }
        well_formed(&page);
    }

    #[test]
    fn charts_stand_in_place_of_the_columns_bars() {
        let columns = [Column::compared("p50_ms", "p50", "ms")];
        let mut report = BenchReport::new("whisper", &columns);
        report.row("a", &[Some(0.05)]);
        report.row("b", &[Some(8_500.0)]);
        let bar = |name: &str, value, is_own| ChartBar { name: name.into(), value, is_own };
        let bars = vec![bar("a & b", 0.05, true), bar("c", 8_500.0, false), bar("d", 0.0, false)];
        report.chart(BarChart { name: "3 <topics>".into(), unit: "ms", bars });
        report.chart(BarChart { name: "empty".into(), unit: "ms", bars: Vec::new() });
        let page = page(&report);
        assert_eq!(page.matches("<svg").count(), 1);
        assert_eq!((page.matches("class=\"own\"").count(), page.matches("<rect").count()), (1, 3));
        assert!(page.contains("3 &lt;topics&gt;") && page.contains("a &amp; b"), "{page}");
        assert!(page.contains("8,500") && !page.contains("NaN") && !page.contains("inf"));
        well_formed(&page);
    }

    /// Asserts that every element is closed, in order.
    fn well_formed(page: &str) {
        let mut open = Vec::new();
        for tag in page.split('<').skip(1) {
            let (tag, _) = tag.split_once('>').expect("a tag ends");
            let name = tag.split_whitespace().next().unwrap();
            if let Some(name) = name.strip_prefix('/') {
                assert_eq!(open.pop(), Some(name));
            } else if !tag.ends_with('/') && !tag.starts_with('!') {
                open.push(name);
            }
        }
        assert!(open.is_empty(), "{open:?}");
    }
}
