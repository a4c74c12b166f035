//! The operator's rules about verified names (NIP-05): whose events need a name, which domains
//! count, and the bounds of checks.

use std::collections::HashSet;
use std::time::Duration;

use hark_networks::nostr::names::is_domain;

use crate::nostr::manage::Managers;
use crate::nostr::rule_mode::RuleMode;

/// Domains: single domains, and domains whose subdomains are meant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DomainList {
    domains: HashSet<Box<str>>,
    /// Domains whose subdomains of any depth are meant.
    parents: HashSet<Box<str>>,
}

impl DomainList {
    /// Adds `example.com`, or `*.example.com` for its subdomains. Returns false if the text has
    /// neither form.
    pub fn add(&mut self, text: &str) -> bool {
        let text = text.trim().to_ascii_lowercase();
        let (list, domain) = match text.strip_prefix("*.") {
            Some(parent) => (&mut self.parents, parent),
            None => (&mut self.domains, text.as_str()),
        };
        let is_valid = is_domain(domain);
        if is_valid {
            list.insert(domain.into());
        }
        is_valid
    }

    /// Whether the list has the domain, in lowercase.
    fn has(&self, domain: &str) -> bool {
        let mut parents = domain.match_indices('.').map(|(at, _)| &domain[at + 1..]);
        self.domains.contains(domain) || parents.any(|parent| self.parents.contains(parent))
    }

    /// Whether the list has no domain.
    fn is_empty(&self) -> bool {
        self.domains.is_empty() && self.parents.is_empty()
    }
}

/// The rules about names. A part of the policy, so they can change while the relay runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NameRules {
    /// Whether names are checked, and whether publishing needs a name.
    pub mode: RuleMode,
    /// Only names of these domains count. `None`: names of all domains.
    pub domains_allowed: Option<DomainList>,
    /// Names of these domains do not count.
    pub domains_denied: DomainList,
    /// How long a confirmation holds, in seconds.
    pub valid_s: u64,
    /// Time after which a confirmed name is checked again, in seconds.
    pub check_every_s: u64,
    /// Maximum number of checks at a time.
    pub checks_max: usize,
    /// Maximum number of keys whose names wait for a check.
    pub waiting_max: usize,
    /// Maximum number of bytes of a domain's document.
    pub answer_bytes_max: usize,
    /// Maximum time of a check.
    pub timeout: Duration,
    /// The keys that may manage the relay, and so need no name.
    pub managers: Managers,
}

impl Default for NameRules {
    fn default() -> Self {
        Self {
            mode: RuleMode::Off,
            domains_allowed: None,
            domains_denied: DomainList::default(),
            valid_s: 30 * 86_400,
            check_every_s: 86_400,
            checks_max: 8,
            waiting_max: 10_000,
            answer_bytes_max: 64 << 10,
            timeout: Duration::from_secs(10),
            managers: Managers::default(),
        }
    }
}

impl NameRules {
    /// Whether names are checked.
    pub(crate) fn is_on(&self) -> bool {
        self.mode != RuleMode::Off
    }

    /// Whether publishing needs a name.
    pub(crate) fn is_required(&self) -> bool {
        self.mode == RuleMode::Require
    }

    /// Whether names of this domain count.
    pub(crate) fn accepts(&self, domain: &str) -> bool {
        self.domains_allowed.as_ref().is_none_or(|list| list.has(domain))
            && !self.domains_denied.has(domain)
    }

    /// Whether no name of any domain counts.
    pub(crate) fn is_empty_list(&self) -> bool {
        self.is_on() && self.domains_allowed.as_ref().is_some_and(DomainList::is_empty)
    }

    /// Time after which a confirmed name is checked again, in seconds. A name is checked at least
    /// once before its confirmation ends.
    pub(crate) fn check_after_s(&self) -> u64 {
        self.check_every_s.min(self.valid_s / 2)
    }

    /// Whether a confirmation of this time still holds.
    pub(crate) fn holds(&self, checked_s: u64, now_s: u64) -> bool {
        now_s < checked_s.saturating_add(self.valid_s)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(domains: &[&str]) -> DomainList {
        let mut list = DomainList::default();
        assert!(domains.iter().all(|domain| list.add(domain)));
        list
    }

    #[test]
    fn domains_count_by_both_lists() {
        let denied = list(&["bad.example.com", "*.spam.example"]);
        let all = NameRules { domains_denied: denied.clone(), ..NameRules::default() };
        let domains_allowed = Some(list(&["Example.com", "*.example.com", "spam.example"]));
        let some = NameRules { domains_allowed, ..all.clone() };
        for (domain, by_all, by_some) in [
            ("example.com", true, true),
            ("a.example.com", true, true),
            ("a.b.example.com", true, true),
            ("bad.example.com", false, false),
            ("an.example.org", true, false),
            ("notexample.com", true, false),
            ("spam.example", true, true),
            ("a.spam.example", false, false),
            ("com", true, false),
        ] {
            assert_eq!(all.accepts(domain), by_all, "{domain}");
            assert_eq!(some.accepts(domain), by_some, "{domain}");
        }
        let none = Some(DomainList::default());
        let none = NameRules { mode: RuleMode::Watch, domains_allowed: none, ..all.clone() };
        assert!(none.is_empty_list() && !none.accepts("example.com") && !all.is_empty_list());
        for wrong in ["", "*", "*.", "com", "*.com", "a b.com", "https://example.com", "127.0.0.1"]
        {
            assert!(!DomainList::default().add(wrong), "{wrong}");
        }
    }

    #[test]
    fn a_name_is_checked_again_before_its_confirmation_ends() {
        let rules = NameRules { valid_s: 100, check_every_s: 30, ..NameRules::default() };
        assert_eq!(rules.check_after_s(), 30);
        assert_eq!(NameRules { check_every_s: 1_000, ..rules.clone() }.check_after_s(), 50);
        assert!(rules.holds(10, 109) && !rules.holds(10, 110) && rules.holds(u64::MAX, 7));
    }
}
