//! The steps of a check on a Citus cluster.

pub(super) use steps::CitusCheck;

mod orphans;
mod pages;
mod prepared;
mod shards;
mod steps;
