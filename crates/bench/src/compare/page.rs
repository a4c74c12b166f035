//! The result as one HTML page that needs no other file: tables that are sorted by a click on a
//! column's head, and a plot for each compared column. The plots use percentages, so they fit
//! narrow screens.

use std::fmt::Write as _;

use super::result::{CompareResult, ComparedEntry, NOT_MEASURED};
use super::table::{CompareTable, ComparedRow, RoundsFigure};
use crate::html::escape;
use crate::words::figure;

const STYLE: &str = "\
:root{color-scheme:light dark;--fg:#1c1e21;--soft:#5b626d;--line:#e3e5e8;--bg:#fff;--bad:#b91c1c;\
--c0:#2563eb;--c1:#d97706;--c2:#059669;--c3:#9333ea;--c4:#db2777;--c5:#64748b}\
@media(prefers-color-scheme:dark){:root{--fg:#e6e7e9;--soft:#9aa1ab;--line:#33363b;--bg:#16181b;\
--bad:#f87171;--c0:#60a5fa;--c1:#fbbf24;--c2:#34d399;--c3:#c084fc;--c4:#f472b6;--c5:#94a3b8}}\
*{box-sizing:border-box}body{font:15px/1.5 system-ui,sans-serif;color:var(--fg);background:var(--bg);\
max-width:72rem;margin:2rem auto;padding:0 1rem}\
h1{font-size:1.5rem;margin:0 0 .25rem}h2{font-size:1.15rem;margin:2.5rem 0 .5rem}\
h3{font-size:1rem;margin:1.5rem 0 .25rem}.soft{color:var(--soft)}.bad{color:var(--bad)}\
.wide{overflow-x:auto}table{border-collapse:collapse;font-variant-numeric:tabular-nums;width:100%}\
th,td{padding:.3rem .6rem;text-align:right;border-bottom:1px solid var(--line);white-space:nowrap}\
th.text,td.text{text-align:left}td.mark{white-space:normal;min-width:14rem;text-align:left}\
th button{all:unset;cursor:pointer;font-weight:600}th button:focus-visible{outline:2px solid var(--c0)}\
th small,td small{display:block;font-weight:400;color:var(--soft)}\
th[aria-sort=ascending] button::after{content:' \\2191'}\
th[aria-sort=descending] button::after{content:' \\2193'}\
svg{display:block;width:100%;margin:.25rem 0 1rem}svg text{font:12px system-ui,sans-serif;fill:var(--fg)}\
svg .axis{fill:var(--soft)}svg .spread{stroke:var(--fg);stroke-width:1.5}\
dl{display:grid;grid-template-columns:max-content minmax(0,1fr);gap:.15rem 1rem}\
dt{color:var(--soft)}dd{margin:0;overflow-wrap:anywhere}pre{white-space:pre-wrap;overflow-wrap:anywhere}";

/// Sorts the rows of a table by the column whose head was clicked. Rows without a figure come last.
const SCRIPT: &str = "\
for(const b of document.querySelectorAll('th button'))b.addEventListener('click',()=>{\
const h=b.parentNode,t=h.closest('table'),n=[...h.parentNode.children].indexOf(h),\
up=h.getAttribute('aria-sort')!=='ascending';\
for(const o of h.parentNode.children)o.removeAttribute('aria-sort');\
h.setAttribute('aria-sort',up?'ascending':'descending');\
const v=r=>r.children[n].dataset.v,rows=[...t.tBodies[0].rows];\
rows.sort((a,b)=>{const x=v(a),y=v(b);if(x===y)return 0;if(x==='')return 1;if(y==='')return -1;\
const d=h.classList.contains('text')?x.localeCompare(y):x-y;return up?d:-d});\
t.tBodies[0].append(...rows)});";

/// Number of colors of relays.
const COLORS: usize = 6;
/// Height of a bar with its label, in pixels.
const STEP: usize = 36;

/// Renders the page.
pub(super) fn page(result: &CompareResult<'_>) -> String {
    let mut out = format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"/>\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\"/>\
         <title>hark bench compare</title><style>{STYLE}</style></head>\n\
         <body><h1>Relays compared</h1>\n<p class=\"soft\">hark bench compare {}. Figures are \
         medians; below are the range of the rounds, and the ratio to {}. Click a head to sort.</p>\n",
        hark::VERSION,
        escape(result.first())
    );
    relays(&mut out, result);
    for table in &result.tables {
        let _ = writeln!(out, "<h2>{}</h2>\n<p class=\"soft\">{}</p>", table.title, table.about);
        rows(&mut out, table, result.first());
        for at in 0..table.columns.len() {
            plot(&mut out, table, at, result);
        }
    }
    out.push_str("<h2>What is not measured</h2>\n");
    for note in &result.notes {
        let _ = writeln!(out, "<p>{}</p>", escape(note));
    }
    let _ = writeln!(out, "<p>{NOT_MEASURED}</p>\n<h2>Measured with</h2>\n<dl>");
    for (key, value) in &result.settings {
        let _ = writeln!(out, "<dt>{}</dt><dd>{}</dd>", escape(key), escape(value));
    }
    out.push_str("</dl>\n<h2>Commands and settings</h2>\n");
    result.relays.iter().for_each(|relay| settings(&mut out, relay));
    let _ = write!(out, "<script>{SCRIPT}</script>\n</body></html>\n");
    out
}

/// Writes the list of relays.
fn relays(out: &mut String, result: &CompareResult<'_>) {
    let heads = ["relay", "version", "durable, as its entry says", "files on", "settings"];
    head(out, heads.map(|head| (head, "", true)));
    for ComparedEntry { planned, facts } in &result.relays {
        let version = facts.version.as_deref().or(facts.software.as_deref()).unwrap_or("unknown");
        let file_system = facts.file_system.as_deref().unwrap_or("");
        out.push_str("<tr>");
        for text in [&*planned.name, version, &planned.durable, file_system, &planned.note] {
            text_cell(out, text, "text");
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</tbody></table></div>\n");
}

/// Begins a table. A head is a name, a unit, and whether the column has texts.
fn head<'a>(out: &mut String, heads: impl IntoIterator<Item = (&'a str, &'a str, bool)>) {
    out.push_str("<div class=\"wide\"><table><thead><tr>");
    for (name, unit, is_text) in heads {
        let class = if is_text { " class=\"text\"" } else { "" };
        let _ = write!(
            out,
            "<th{class}><button>{}</button><small>{}</small></th>",
            escape(name),
            escape(unit)
        );
    }
    out.push_str("</tr></thead><tbody>\n");
}

fn text_cell(out: &mut String, text: &str, class: &str) {
    let text = escape(text);
    let _ = write!(out, "<td class=\"{class}\" data-v=\"{text}\">{text}</td>");
}

/// Writes the rows of a table.
fn rows(out: &mut String, table: &CompareTable, first: &str) {
    let has_cases = table.rows.iter().any(|row| !row.case.is_empty());
    let has_marks = table.rows.iter().any(|row| !row.marks.is_empty());
    let case = has_cases.then_some(("case", "", true));
    let figures = table.columns.iter().map(|column| (column.head, column.unit, false));
    let marks = has_marks.then_some(("marked", "", true));
    head(out, case.into_iter().chain([("relay", "", true)]).chain(figures).chain(marks));
    for row in &table.rows {
        out.push_str("<tr>");
        if has_cases {
            text_cell(out, &row.case, "text");
        }
        text_cell(out, &row.relay, "text");
        for at in 0..table.columns.len() {
            let of = row.figure(at);
            let value = of.map_or_else(String::new, |of| of.median.to_string());
            let ratio = table.ratio(row, at, first);
            let text = of.map_or_else(|| "-".into(), |of| figure(of.median));
            let _ = write!(out, "<td data-v=\"{value}\">{text}{}</td>", spread(of, ratio));
        }
        if has_marks {
            text_cell(out, &row.mark_text(), "mark bad");
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</tbody></table></div>\n");
}

/// Formats the range of the rounds and the ratio to the first relay, in a line of their own.
fn spread(figure_of: Option<RoundsFigure>, ratio: Option<f64>) -> String {
    let range = figure_of.filter(|of| of.most > of.least);
    let range = range.map(|of| format!("{}–{}", figure(of.least), figure(of.most)));
    let parts: Vec<String> =
        range.into_iter().chain(ratio.map(|ratio| format!("{ratio:.2}x"))).collect();
    if parts.is_empty() { String::new() } else { format!("<small>{}</small>", parts.join(" · ")) }
}

/// Draws a bar for each row that has a figure, with a line for the range of the rounds.
fn plot(out: &mut String, table: &CompareTable, at: usize, result: &CompareResult<'_>) {
    let Some(column) = table.columns.get(at).filter(|column| column.compared) else { return };
    let drawn: Vec<(&ComparedRow, _)> =
        table.rows.iter().filter_map(|row| Some((row, row.figure(at)?))).collect();
    let most = drawn.iter().map(|(_, figure)| figure.most).fold(0.0, f64::max);
    if most <= 0.0 {
        return;
    }
    let unit = if column.unit.is_empty() { String::new() } else { format!(", {}", column.unit) };
    let name = escape(&format!("{}{unit}", column.head));
    let height = drawn.len() * STEP;
    let _ = writeln!(
        out,
        "<h3>{name}</h3>\n<svg height=\"{height}\" role=\"img\" aria-label=\"{}: {name}\">",
        escape(table.title)
    );
    // The longest bar leaves room for its figure.
    let share = |value: f64| value.max(0.0) / most * 78.0;
    for (number, (row, of)) in drawn.iter().enumerate() {
        let y = number * STEP;
        let color = result.relays.iter().position(|relay| relay.planned.name == row.relay);
        let color = color.map_or(COLORS - 1, |color| color % (COLORS - 1));
        let case = if row.case.is_empty() { String::new() } else { format!("{}: ", row.case) };
        let _ = writeln!(
            out,
            "<text x=\"0\" y=\"{}\">{}</text>\
             <rect x=\"0\" y=\"{}\" width=\"{:.2}%\" height=\"12\" rx=\"2\" fill=\"var(--c{color})\"/>\
             <line class=\"spread\" x1=\"{:.2}%\" x2=\"{:.2}%\" y1=\"{}\" y2=\"{}\"/>\
             <text class=\"axis\" x=\"{:.2}%\" dx=\"6\" y=\"{}\">{}</text>",
            y + 13,
            escape(&format!("{case}{}", row.relay)),
            y + 18,
            share(of.median),
            share(of.least),
            share(of.most),
            y + 24,
            y + 24,
            share(of.most),
            y + 28,
            figure(of.median)
        );
    }
    out.push_str("</svg>\n");
}

/// Writes the command, the environment and the files of a relay.
fn settings(out: &mut String, ComparedEntry { planned, .. }: &ComparedEntry) {
    let _ = writeln!(out, "<h3>{}</h3>", escape(&planned.name));
    let mut text = planned.command.join(" ");
    for (name, value) in &planned.env {
        let _ = write!(text, "\n{name}={value}");
    }
    for (file, content) in &planned.files {
        let _ = write!(text, "\n\n{file}:\n{content}");
    }
    let _ = writeln!(out, "<pre>{}</pre>", escape(&text));
}
