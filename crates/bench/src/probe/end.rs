//! The reasons for which a check ends without success.

/// The reason for which a check did not pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ProbeEnd {
    /// The relay broke the rule.
    Failed(String),
    /// The relay does not support the rule's NIP.
    Unsupported(String),
    /// The relay refused a step that the check needs, so the check shows nothing.
    Undecided(String),
}

/// The result of a check.
pub(crate) type ProbeResult<T = ()> = Result<T, ProbeEnd>;

impl From<anyhow::Error> for ProbeEnd {
    /// A connection that broke while an answer was due.
    fn from(error: anyhow::Error) -> Self {
        Self::Failed(format!("{error:#}"))
    }
}

/// Fails unless `holds`.
pub(crate) fn ensure(holds: bool, otherwise: impl FnOnce() -> String) -> ProbeResult {
    if holds { Ok(()) } else { Err(ProbeEnd::Failed(otherwise())) }
}
