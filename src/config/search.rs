//! The settings of full-text search: which texts are indexed.

use std::sync::Arc;

use hark_archive::TextSource;
use hark_networks::nostr::texts::{TextChoice, TextPart};

use super::setting_type::{SettingType, quoted, wanted};
use super::value::TypedValue;

/// The selection of texts to index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SearchSettings {
    pub(crate) enabled: bool,
    pub(crate) kinds: Vec<u32>,
    pub(crate) parts: TextParts,
}

impl Default for SearchSettings {
    fn default() -> Self {
        let TextChoice { kinds, parts } = TextChoice::default();
        Self { enabled: false, kinds, parts: TextParts(parts) }
    }
}

impl SearchSettings {
    /// Returns the indexed texts; `None` without search.
    pub(crate) fn texts(&self, private_kinds: &[u32]) -> Option<Arc<dyn TextSource>> {
        let choice = TextChoice { kinds: self.kinds.clone(), parts: self.parts.0.clone() };
        self.enabled.then(|| choice.source(private_kinds))
    }
}

/// The parts of events that are indexed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TextParts(Vec<TextPart>);

impl SettingType for TextParts {
    fn read(value: &TypedValue) -> Result<Self, String> {
        let what = r#"a list of "content", "titles", "hashtags" and "profiles""#;
        let named = Vec::<String>::read(value).or_else(|_| wanted(what, value))?;
        let known = |name: &String| TextPart::ALL.into_iter().find(|part| part.name() == name);
        let parts: Option<Vec<_>> = named.iter().map(known).collect();
        parts.map_or_else(|| wanted(what, value), |parts| Ok(Self(parts)))
    }

    fn show(&self) -> String {
        let parts: Vec<String> = self.0.iter().map(|part| quoted(part.name())).collect();
        format!("[{}]", parts.join(", "))
    }
}
