//! Reports of measurements, printed as a table, as JSON or as an HTML page.

mod parts;
mod publish;
mod results;

pub use parts::{BarChart, ChartBar, Curve};
pub use results::{BenchReport, Column, ReportRow, ReportSection};
