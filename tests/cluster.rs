//! `hark cluster` on real nodes: a coordinator and workers of Citus, while a client writes rows.

mod frozen;
mod lost;
mod moved;
mod refused;

use std::io::{BufRead as _, BufReader};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};
use std::thread::JoinHandle;

use hark_testkit::citus::{self, CitusCluster};
use hark_testkit::postgres::{Cluster, Database};
use hark_testkit::program::{Finished, Process};
use hark_testkit::wait::until_ok;
use parking_lot::Mutex;
use serde_json::Value;

use crate::cli::support::{command, hark};

/// Each test has a separate database on the same nodes, and each database needs a worker process of
/// Citus.
const SETTINGS: [&str; 2] = ["fsync=off", "max_worker_processes=60"];
/// Initial number of rows of a test's table.
const ROWS: i64 = 2_000;

/// The nodes that all tests share.
struct Nodes {
    cluster: CitusCluster,
    /// A node that belongs to no cluster.
    spare: Cluster,
    /// Locked while a node is added. Citus writes roles, which all databases share, to the new
    /// node, and fails if two databases do so at the same time.
    adding: Mutex<()>,
}

impl Nodes {
    /// Returns the nodes. `None` without Citus: the running test then counts as skipped.
    fn shared() -> Option<&'static Self> {
        static SHARED: LazyLock<Nodes> = LazyLock::new(|| Nodes {
            cluster: CitusCluster::with(2, &SETTINGS),
            spare: CitusCluster::node(&SETTINGS),
            adding: Mutex::new(()),
        });
        citus::is_installed().then(|| &*SHARED)
    }

    /// Creates a database of the cluster for a test.
    fn database(&self, test: &str) -> Database<'_> {
        let _alone = self.adding.lock();
        self.cluster.database(test)
    }

    fn coordinator(&self) -> &Cluster {
        &self.cluster.coordinator
    }

    fn worker(&self, at: usize) -> &Cluster {
        &self.cluster.workers[at]
    }
}

/// A node's address for `hark cluster`.
fn address(node: &Cluster) -> String {
    format!("127.0.0.1:{}", node.port())
}

/// Makes a table of this many shards with [`ROWS`] rows.
fn make_table(database: &Database<'_>, shards: usize) {
    database.sql("CREATE TABLE t (n bigint PRIMARY KEY, writes int NOT NULL, text text)");
    database.sql(&format!("SELECT create_distributed_table('t', 'n', shard_count => {shards})"));
    let rows = format!("SELECT n, 0, repeat('x', 200) FROM generate_series(1, {ROWS}) n");
    database.sql(&format!("INSERT INTO t {rows}"));
}

/// Returns the cluster's list of nodes: each port, and whether the node may have shards.
fn members(database: &Database<'_>) -> String {
    database.sql("SELECT nodeport, shouldhaveshards FROM pg_dist_node ORDER BY groupid, nodeid")
}

/// Returns the number of shards on a node.
fn shards_on(database: &Database<'_>, node: &Cluster) -> usize {
    let shards = format!("SELECT count(*) FROM citus_shards WHERE nodeport = {}", node.port());
    database.sql(&shards).parse().unwrap()
}

fn cluster(database: &Database<'_>, args: &[&str]) -> Finished {
    hark(&[&["--store", &database.url, "cluster"], args].concat())
}

/// Starts a command that prints JSON, for a test that ends the command early.
fn begin(database: &Database<'_>, args: &[&str]) -> (Process, impl Iterator<Item = Value> + use<>) {
    let mut child = command(&[&["--store", &database.url, "cluster"], args].concat())
        .spawn()
        .expect("the binary runs");
    let lines = BufReader::new(child.stdout.take().expect("is piped")).lines();
    (child, lines.map(|line| serde_json::from_str(&line.expect("is read")).expect("is JSON")))
}

/// Returns all lines of a run as JSON.
fn events(run: &Finished) -> Vec<Value> {
    let parse = |line| serde_json::from_str(line).unwrap_or_else(|_| panic!("no JSON: {line}"));
    run.stdout.lines().map(parse).collect()
}

/// Returns the result of a successful run, which is the last line.
fn result(run: &Finished) -> Value {
    assert_eq!(run.code, 0, "{}{}", run.stdout, run.stderr);
    let last = events(run).pop().expect("a line");
    assert_eq!(last["event"], "result", "{last}");
    last
}

/// Waits until `query` answers `expected` on a node.
fn wait_for(node: &Cluster, database: &str, query: &str, expected: &str) {
    until_ok(|| {
        let found = node.sql(database, query);
        if found == expected { Ok(()) } else { Err(format!("{query}: {found}")) }
    });
}

/// Inserts rows and updates existing rows, one at a time, until the test stops the writer.
struct Writer {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Written>,
}

/// The record of a writer's work.
struct Written {
    /// Acknowledged inserted rows.
    inserted: Vec<i64>,
    /// Updated rows. A row is listed once for each acknowledged update.
    updated: Vec<i64>,
    /// The database's messages for failed writes.
    failed: Vec<String>,
}

impl Writer {
    /// Starts a writer whose new rows are numbered from `first`.
    fn start(database: &Database<'_>, first: i64) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (url, flag) = (database.url.clone(), Arc::clone(&stop));
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(async {
                let connect = tokio_postgres::connect(&url, tokio_postgres::NoTls).await;
                let (client, connection) = connect.expect("connects");
                tokio::spawn(connection);
                let mut done =
                    Written { inserted: Vec::new(), updated: Vec::new(), failed: Vec::new() };
                for at in 0.. {
                    if flag.load(Ordering::Relaxed) {
                        break;
                    }
                    let (new, old) = (first + at, at % ROWS + 1);
                    match client.execute("INSERT INTO t VALUES ($1, 0, 'new')", &[&new]).await {
                        Ok(_) => done.inserted.push(new),
                        Err(error) => done.failed.push(format!("{error:?}")),
                    }
                    let update = "UPDATE t SET writes = writes + 1 WHERE n = $1";
                    match client.execute(update, &[&old]).await {
                        Ok(_) => done.updated.push(old),
                        Err(error) => done.failed.push(format!("{error:?}")),
                    }
                }
                done
            })
        });
        Self { stop, thread }
    }

    fn stop(self) -> Written {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("the writer has not failed")
    }
}

impl Written {
    /// Asserts that all acknowledged writes are in the database.
    fn is_there(&self, database: &Database<'_>) {
        assert!(self.inserted.len() > 10 && self.updated.len() > 10, "it has hardly written");
        let list: Vec<String> = self.inserted.iter().map(i64::to_string).collect();
        let there = format!("SELECT count(*) FROM t WHERE n = ANY ('{{{}}}')", list.join(","));
        assert_eq!(database.sql(&there), self.inserted.len().to_string());
        let first = format!("SELECT count(*) FROM t WHERE n <= {ROWS}");
        assert_eq!(database.sql(&first), ROWS.to_string());
        // A write with a lost answer may have been applied.
        let writes = format!("SELECT sum(writes) FROM t WHERE n <= {ROWS}");
        let writes: usize = database.sql(&writes).parse().unwrap();
        assert!(
            (self.updated.len()..=self.updated.len() + self.failed.len()).contains(&writes),
            "{writes} of {} updates are there",
            self.updated.len()
        );
    }
}
