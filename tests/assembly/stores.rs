//! The stores: the location of an archive, and its address for Hark.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};

use hark_testkit::citus::CitusCluster;
use hark_testkit::pooler::Pooler;
use hark_testkit::postgres::Cluster;

/// A store of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StoreKind {
    Files,
    Postgres,
    Replica,
    Pooler,
    TwoNodes,
    Citus,
}

use StoreKind::{Citus, Files, Pooler as Pooled, Postgres, Replica, TwoNodes};

/// All stores. All others are compared with the first store.
pub(crate) const STORES: [StoreKind; 6] = [Files, Postgres, Replica, Pooled, TwoNodes, Citus];

impl StoreKind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Files => "files",
            Postgres => "postgres",
            Replica => "replica",
            Pooled => "pgbouncer",
            TwoNodes => "two nodes",
            Citus => "citus",
        }
    }

    pub(crate) fn is_database(self) -> bool {
        self != Files
    }

    /// The reason why this machine has no such store.
    pub(crate) fn missing(self) -> Option<&'static str> {
        match self {
            Pooled if !Pooler::is_installed() => {
                Some("PgBouncer is not installed (Debian's package `pgbouncer`)")
            }
            Citus if !Cluster::has_extension("citus") => {
                Some("PostgreSQL has no extension `citus` here")
            }
            _ => None,
        }
    }

    /// The number of Hark's processes on one archive.
    pub(crate) fn nodes(self) -> usize {
        if self == TwoNodes { 2 } else { 1 }
    }
}

/// The database servers of an archive.
pub(crate) struct Backing {
    servers: Servers,
    /// The database's name.
    pub(crate) name: String,
    pooler: Option<Pooler>,
}

/// The servers of a database.
enum Servers {
    Shared(&'static Cluster),
    Own(Cluster),
    SharedPair(&'static (Cluster, Cluster)),
    OwnPair(Cluster, Cluster),
    Citus(&'static CitusCluster),
}

/// A primary and its replica, shared by all worlds that do not kill database servers.
fn pair() -> &'static (Cluster, Cluster) {
    static PAIR: LazyLock<(Cluster, Cluster)> = LazyLock::new(new_pair);
    &PAIR
}

fn new_pair() -> (Cluster, Cluster) {
    let primary = Cluster::with(&["fsync=off"]);
    let replica = primary.replica();
    (primary, replica)
}

impl Backing {
    /// Makes a database for a store. With `is_own`, the database has its own servers, since the
    /// test kills servers.
    pub(crate) fn new(store: StoreKind, is_own: bool) -> Self {
        let servers = match (store, is_own) {
            (Replica, false) => Servers::SharedPair(pair()),
            (Replica, true) => {
                let (primary, replica) = new_pair();
                Servers::OwnPair(primary, replica)
            }
            (Citus, _) => Servers::Citus(CitusCluster::shared()),
            (_, false) => Servers::Shared(Cluster::shared()),
            (_, true) => Servers::Own(Cluster::new()),
        };
        let mut backing = Self { servers, name: String::new(), pooler: None };
        backing.name = backing.make();
        if store == Pooled {
            let settings = ["pool_mode=session", "max_client_conn=400", "default_pool_size=90"];
            backing.pooler = backing.primary().pooler(&settings);
        }
        backing
    }

    /// Makes another database on the same servers, and returns its name.
    pub(crate) fn make(&self) -> String {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        if let Servers::Citus(cluster) = &self.servers {
            let database = cluster.database("assembly");
            let name = database.name.clone();
            // The database is removed with the cluster, which ends with this process.
            std::mem::forget(database);
            return name;
        }
        let name = format!("assembly_{number}");
        let sql = format!("CREATE DATABASE {name}");
        // After a failover only the replica runs, as the primary.
        let servers = [Some(self.primary()), self.replica()];
        let tries = servers.into_iter().flatten().map(|of| of.try_sql("postgres", &sql));
        let faults: Vec<String> = tries.map_while(Result::err).collect();
        assert!(faults.len() < servers.iter().flatten().count(), "{faults:?}");
        name
    }

    /// The server that accepts writes before a failover.
    pub(crate) fn primary(&self) -> &Cluster {
        match &self.servers {
            Servers::Shared(cluster) => cluster,
            Servers::Own(cluster) | Servers::OwnPair(cluster, _) => cluster,
            Servers::SharedPair((primary, _)) => primary,
            Servers::Citus(cluster) => &cluster.coordinator,
        }
    }

    pub(crate) fn replica(&self) -> Option<&Cluster> {
        match &self.servers {
            Servers::SharedPair((_, replica)) | Servers::OwnPair(_, replica) => Some(replica),
            _ => None,
        }
    }

    /// The address of a database for Hark.
    pub(crate) fn url(&self, database: &str) -> String {
        match (&self.pooler, &self.servers) {
            (Some(pooler), _) => pooler.url(database),
            // With both addresses, Hark finds the new primary after a failover.
            (None, Servers::OwnPair(primary, replica)) => format!(
                "postgres://postgres@127.0.0.1:{},127.0.0.1:{}/{database}?target_session_attrs=read-write",
                primary.port(),
                replica.port()
            ),
            (None, _) => self.primary().url(database),
        }
    }

    /// The number of connections that the database has.
    pub(crate) fn connections(&self) -> usize {
        let sql = format!("SELECT count(*) FROM pg_stat_activity WHERE datname = '{}'", self.name);
        // After a failover the replica is the primary.
        let servers = [Some(self.primary()), self.replica()];
        let counts =
            servers.into_iter().flatten().filter_map(|of| of.try_sql("postgres", &sql).ok());
        counts.filter_map(|count| count.parse::<usize>().ok()).sum()
    }
}
