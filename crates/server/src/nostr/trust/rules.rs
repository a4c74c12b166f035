//! The operator's rule for trusted keys.

use hark_codec::record::Key;

use crate::nostr::rule_mode::RuleMode;

/// Largest number of rings of followed keys around the roots.
pub const TRUST_DEPTH_MAX: usize = 3;

/// Decides which keys are trusted. The roots are trusted. The keys that enough roots follow are
/// the first ring, and the keys that enough roots and keys of the first ring follow are the second
/// ring, and so on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrustRules {
    /// The keys that are trusted without a follower, ascending.
    pub roots: Vec<Key>,
    /// Number of rings around the roots, at most [`TRUST_DEPTH_MAX`].
    pub depth: u8,
    /// Number of followers in the inner rings that a key needs. For the first ring, no more
    /// followers are needed than there are roots.
    pub followers_min: u32,
    /// Maximum number of keys of a follow list that count.
    pub follows_max: usize,
    /// Maximum memory for keys and follow lists, in bytes.
    pub bytes_max: usize,
}

impl Default for TrustRules {
    fn default() -> Self {
        Self {
            roots: Vec::new(),
            depth: 2,
            followers_min: 1,
            follows_max: 5_000,
            bytes_max: 128 << 20,
        }
    }
}

impl TrustRules {
    /// Number of followers in the inner rings that a key of this ring needs.
    pub(super) fn followers_needed(&self, ring: usize) -> u32 {
        let of_roots = u32::try_from(self.roots.len()).unwrap_or(u32::MAX);
        let needed = self.followers_min.max(1);
        if ring == 1 { needed.min(of_roots.max(1)) } else { needed }
    }
}

/// The rule and its effect.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TrustOptions {
    /// The effect of the rule.
    pub mode: RuleMode,
    /// The rule.
    pub rules: TrustRules,
}

impl TrustOptions {
    /// Returns the warnings for the operator. `has_members` tells whether an allow list of keys is
    /// set.
    pub fn advice(&self, has_members: bool) -> impl Iterator<Item = String> + use<> {
        let is_on = self.mode != RuleMode::Off;
        let rootless = (is_on && self.rules.roots.is_empty()).then(|| {
            "[trust] roots has no key, so nobody is trusted; name the keys whose follow lists count"
                .to_owned()
        });
        let useless = (is_on && has_members).then(|| {
            "[trust] mode has no effect, because only the keys of [policy] allow_keys may publish; \
             [\"*\"] would leave the decision to [trust]"
                .to_owned()
        });
        rootless.into_iter().chain(useless)
    }
}
