//! The command line of the benches as typed: their flags and examples.

mod common;
mod crowd;
mod probe;
mod relay;
mod sql;
mod waku;

pub(crate) use common::{OutputArgs, at_least_one, seconds};
pub(crate) use crowd::{CrowdArgs, Habit};
pub(crate) use probe::{AnswersArgs, RulesArgs};
pub(crate) use relay::{BenchQueryArgs, FanoutArgs, GenArgs, IdleArgs, IngestArgs, NullArgs};
pub(crate) use sql::{HammerArgs, NostreamArgs, SqlArgs};
pub(crate) use waku::{PublishMethod, TOPICS, WakuBenchArgs, WakuBenchCommand, WakuGenArgs};
