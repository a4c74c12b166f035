//! The log: the source of truth of a shelf. Frames are appended to a log and read back.
//! docs/format.md describes the format.

mod error;
mod file;
mod format;
mod replay;

pub use error::LogError;
pub use file::{Log, LogRewrite};
pub use format::{
    BODY_MAX, BYTES_MAX, FRAME, HEADER, LOG_BYTES_MAX, LogFrame, MAGIC, frame, header, path, salt,
};
pub(crate) use format::{parse_name, put_of};
pub use replay::{LogEnd, replay, replay_whole};
pub(crate) use replay::{map, replay_any, replay_batch, replay_mapped};
