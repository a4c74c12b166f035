//! The settings of the rule about trusted keys.

use std::path::{Path, PathBuf};

use hark_server::nostr::{RuleMode, TrustOptions, TrustRules};

use super::files::FileTexts;
use super::policy::{PolicyList, PolicyReader};

/// The settings as typed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TrustSettings {
    pub(crate) mode: RuleMode,
    pub(crate) roots: PolicyList,
    pub(crate) depth: u64,
    pub(crate) followers_min: u32,
    pub(crate) follows_max: usize,
    pub(crate) bytes_max: usize,
}

impl Default for TrustSettings {
    fn default() -> Self {
        let TrustOptions { mode, rules } = TrustOptions::default();
        let TrustRules { roots: _, depth, followers_min, follows_max, bytes_max } = rules;
        let (roots, depth) = (PolicyList::default(), u64::from(depth));
        Self { mode, roots, depth, followers_min, follows_max, bytes_max }
    }
}

impl TrustSettings {
    /// Returns the files that the roots name. Relative names are resolved against `folder`.
    pub(super) fn files(&self, folder: &Path) -> impl Iterator<Item = PathBuf> {
        self.roots.files(folder)
    }

    /// Reads the files of the roots, adds their texts to `texts`, and checks every key.
    pub(super) fn read(
        &self,
        folder: &Path,
        texts: &mut FileTexts,
    ) -> Result<TrustOptions, Vec<String>> {
        let mut reader = PolicyReader::new(folder, "trust", texts);
        let mut roots: Vec<_> = reader.keys("roots", &self.roots).into_iter().collect();
        if !reader.faults.is_empty() {
            return Err(reader.faults);
        }
        roots.sort_unstable();
        let Self { mode, followers_min, follows_max, bytes_max, .. } = *self;
        let depth = u8::try_from(self.depth).unwrap_or(u8::MAX);
        let rules = TrustRules { roots, depth, followers_min, follows_max, bytes_max };
        Ok(TrustOptions { mode, rules })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roots_are_read_in_both_forms_and_sorted() {
        let hex = "7e7e9c42a91bfef19fa929e5fda1b72e0ebc1a4c1141673e2794234d86addf4e";
        let npub = "npub10elfcs4fr0l0r8af98jlmgdh9c8tcxjvz9qkw038js35mp4dma8qzvjptg";
        let one = "01".repeat(32);
        let roots = PolicyList(vec![npub.into(), hex.into(), one]);
        let settings = TrustSettings { roots, ..TrustSettings::default() };
        let options = settings.read(Path::new("/nowhere"), &mut FileTexts::new()).unwrap();
        assert_eq!(options.rules.roots.len(), 2);
        assert_eq!(options.rules.roots[0], [1; 32]);
        let roots = PolicyList(vec!["npub1x".into(), "@gone".into()]);
        let settings = TrustSettings { roots, ..settings };
        let faults = settings.read(Path::new("/nowhere"), &mut FileTexts::new()).unwrap_err();
        assert_eq!(faults.len(), 2, "{faults:?}");
        assert!(faults.iter().all(|fault| fault.starts_with("[trust] `roots`: ")), "{faults:?}");
    }
}
