//! The charts of a report, which are drawn in its HTML page: latency curves and bars.

/// Latencies in ms at evenly spaced percentiles, from 0 to 100.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve {
    /// The name of the curve.
    pub name: String,
    /// The latencies at 0 %, 1 %, … 100 %.
    pub points: Vec<f64>,
}

/// Figures that are drawn beside each other as bars, in the HTML page.
#[derive(Clone, Debug, PartialEq)]
pub struct BarChart {
    /// Title of the chart.
    pub name: String,
    /// The unit of the figures.
    pub unit: &'static str,
    /// The bars.
    pub bars: Vec<ChartBar>,
}

/// A bar of a chart.
#[derive(Clone, Debug, PartialEq)]
pub struct ChartBar {
    /// The name of the bar.
    pub name: String,
    /// The figure that the bar shows.
    pub value: f64,
    /// Whether the figure is Hark's. Other figures are for comparison.
    pub is_own: bool,
}
