//! `hark cluster`: manages the nodes of a Citus cluster that stores the archive's tables.
//!
//! `hark_store_postgres::cluster` does the work, and continues it after an interruption. The
//! command line is in `args`.

mod args;
mod report;
mod standby;
mod status;
mod work;

use std::process::ExitCode;
use std::sync::Arc;

use hark_store_postgres::cluster::{ClusterError, Coordinator, StatementWatch};

use crate::interrupt::INTERRUPTED;
use crate::location::ArchiveLocation;
use crate::print;
use crate::stores::postgres::DatabaseArchive;
use crate::wrong_use::WrongUse;
use args::ClusterAction;
pub(crate) use args::ClusterArgs;

pub(crate) fn run(args: &ClusterArgs, location: &ArchiveLocation) -> anyhow::Result<ExitCode> {
    let Some(archive) = location.store_as::<DatabaseArchive>() else {
        return Err(WrongUse(
            "this archive is in files; name the coordinator of a cluster with --store \
             postgres://user@host/database"
                .into(),
        )
        .into());
    };
    let mut coordinator = match Coordinator::open(&archive.url) {
        Err(ClusterError::NotCluster(words)) => return Err(WrongUse(words).into()),
        opened => opened?,
    };
    // Commands that change the cluster replace this watch.
    coordinator.watch(StatementWatch {
        note: Arc::new(|words: &str| print::note!("hark: {words}")),
        ..StatementWatch::default()
    });
    let done = match &args.action {
        ClusterAction::Status(args) => status::run(args, &mut coordinator),
        ClusterAction::Standby(args) => standby::run(args, &mut coordinator),
        ClusterAction::Add(args) => work::add(args, &mut coordinator),
        ClusterAction::Drain(args) => work::drain(args, &mut coordinator),
        ClusterAction::Rebalance(args) => work::rebalance(args, &mut coordinator),
        ClusterAction::Replace(args) => work::replace(args, &mut coordinator),
    };
    match done {
        Err(error)
            if matches!(
                error.downcast_ref(),
                Some(ClusterError::Interrupted | ClusterError::Stopped(_))
            ) =>
        {
            print::note!("hark: {error}");
            Ok(ExitCode::from(INTERRUPTED))
        }
        done => done,
    }
}
