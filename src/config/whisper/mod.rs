//! The Whisper mail server: its settings and its construction.

mod keys;
mod section;
mod settings;

pub(super) use section::{SECTION, SETUP};
pub(crate) use settings::WhisperSettings;
