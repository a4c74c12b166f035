//! The Waku node: its settings and its construction.

mod section;
mod settings;

pub(super) use section::{SECTION, SETUP};
pub(crate) use settings::WakuSettings;
