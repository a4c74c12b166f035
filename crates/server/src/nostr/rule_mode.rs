//! The modes of the rules about authors: the rule about verified names (`names`), and the rule about
//! trusted keys (`trust`).

/// Whether such a rule is in force.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RuleMode {
    /// The rule does not apply, and needs no data.
    #[default]
    Off,
    /// Events that the rule would refuse are counted, and accepted.
    Watch,
    /// The rule refuses events.
    Require,
}
