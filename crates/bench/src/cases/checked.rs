//! Measured setups, and setups whose throughput is predicted.

use super::case::CaseForm;
use super::costs::FormCosts;
use super::model::{QuestionCpu, ServerCount};

/// A measured setup, with the costs of its questions.
pub(super) struct MeasuredSetup {
    pub(super) name: String,
    pub(super) costs: Vec<FormCosts>,
}

/// A setup whose throughput is predicted.
pub(super) struct CheckedSetup {
    pub(super) name: String,
    pub(super) count: ServerCount,
    /// Empty if no throughput was measured with bounds.
    pub(super) measured: Vec<CheckedForm>,
    /// CPU of a question by form, measured while the CPU of the servers is not bounded.
    pub(super) unbounded: Vec<(CaseForm, QuestionCpu)>,
    /// The share of the busiest worker in the CPU of all workers, by form.
    pub(super) busiest: Vec<(CaseForm, f64)>,
}

/// The measurements of a form while the CPU of the PostgreSQL servers is bounded.
#[derive(Clone, Copy)]
pub(super) struct CheckedForm {
    pub(super) form: CaseForm,
    /// Questions a second.
    pub(super) per_s: f64,
    /// CPU of a question.
    pub(super) cpu: QuestionCpu,
    /// The share of its CPU bound that each of these servers used: the database or coordinator, and
    /// the busiest worker.
    pub(super) database_used: f64,
    pub(super) busiest_used: f64,
}

impl CheckedSetup {
    /// Creates a setup without measurements.
    pub(super) fn unmeasured(name: String, count: ServerCount) -> Self {
        let (measured, unbounded, busiest) = (Vec::new(), Vec::new(), Vec::new());
        Self { name, count, measured, unbounded, busiest }
    }

    /// Returns the CPU of a question, preferably as measured with bounds: a question takes more CPU
    /// on a server that often has to pause.
    pub(super) fn cpu_of(&self, form: CaseForm) -> Option<QuestionCpu> {
        let unbounded = self.unbounded.iter().find(|(of, _)| *of == form);
        self.measured_of(form).map(|of| of.cpu).or_else(|| Some(unbounded?.1))
    }

    /// Returns the measured share of the busiest worker. It may exceed an equal share, since
    /// questions do not use all shards equally.
    pub(super) fn busiest_of(&self, form: CaseForm) -> Option<f64> {
        self.busiest.iter().find(|(of, _)| *of == form).map(|(_, share)| *share)
    }

    pub(super) fn measured_of(&self, form: CaseForm) -> Option<CheckedForm> {
        self.measured.iter().find(|of| of.form == form).copied()
    }
}
