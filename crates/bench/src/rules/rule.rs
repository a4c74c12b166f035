//! A rule of the wire protocol: the sentence of the NIP, and the check.

use std::pin::Pin;

use super::trial::RuleTrial;
use crate::probe::end::ProbeResult;

/// The force of a rule's sentence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RuleForce {
    /// The sentence, or the list that contains the sentence, has MUST or MUST NOT.
    Must,
    /// The sentence defines the protocol, without a word such as MUST.
    Plain,
    /// The sentence, or the list that contains the sentence, has SHOULD or SHOULD NOT, or the NIP
    /// calls the sentence a convention.
    Should,
    /// The sentence has MAY, or is only an example.
    May,
}

impl RuleForce {
    /// The name in reports.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Must => "MUST",
            Self::Plain => "plain",
            Self::Should => "SHOULD",
            Self::May => "MAY",
        }
    }

    /// Whether a relay that breaks the rule fails the run.
    pub(crate) fn is_binding(self) -> bool {
        matches!(self, Self::Must | Self::Plain)
    }
}

/// The check of a rule, while it runs.
type RunningCheck<'a> = Pin<Box<dyn Future<Output = ProbeResult> + 'a>>;
/// The check of a rule.
type RuleCheck = for<'a, 'b> fn(&'a mut RuleTrial<'b>) -> RunningCheck<'a>;

/// A rule of the wire protocol.
pub(crate) struct Rule {
    /// The number of the NIP.
    pub(crate) nip: u64,
    /// The rule's name within its NIP.
    pub(crate) name: &'static str,
    pub(crate) force: RuleForce,
    /// The words of the NIP. " … " stands for left out words.
    pub(crate) sentence: &'static str,
    /// The messages that the check sends.
    pub(crate) sent: &'static str,
    /// The answer that keeps the rule.
    pub(crate) expected: &'static str,
    pub(crate) check: RuleCheck,
}

impl Rule {
    /// The name in reports, such as `NIP-09 own-events`.
    pub(crate) fn id(&self) -> String {
        format!("NIP-{:02} {}", self.nip, self.name)
    }
}

pub(super) const fn rule(
    (nip, name): (u64, &'static str),
    force: RuleForce,
    sentence: &'static str,
    (sent, expected): (&'static str, &'static str),
    check: RuleCheck,
) -> Rule {
    Rule { nip, name, force, sentence, sent, expected, check }
}
