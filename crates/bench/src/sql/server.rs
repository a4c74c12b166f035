//! A PostgreSQL server on which benches create databases.

use anyhow::Context as _;
use tokio::runtime::Runtime;
use tokio_postgres::{Client, Config, NoTls};

/// Holds the connection settings of a PostgreSQL server. Each connection adds a database name.
pub(crate) struct SqlServer(Config);

impl SqlServer {
    /// Reads the address of a server: `postgres://…`.
    pub(crate) fn new(url: &str) -> anyhow::Result<Self> {
        let config = url.parse().with_context(
            || "no address of a server; it looks like postgres://user@127.0.0.1:5432",
        )?;
        Ok(Self(config))
    }

    /// Connects to a database. The returned runtime drives the connection, but only during a
    /// `block_on`.
    pub(crate) fn connect(&self, database: &str) -> anyhow::Result<(Runtime, Client)> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let mut config = self.0.clone();
        config.dbname(database);
        let (client, connection) = runtime
            .block_on(config.connect(NoTls))
            .with_context(|| format!("PostgreSQL's database {database} could not be reached"))?;
        // If the connection ends, the client's next query fails.
        runtime.spawn(connection);
        Ok((runtime, client))
    }

    /// Returns the database that the address names.
    pub(crate) fn database_of_url(&self) -> &str {
        self.0.get_dbname().unwrap_or("postgres")
    }

    /// Creates an empty database. With `replace`, removes an existing database of this name first.
    pub(crate) fn create(&self, database: &str, replace: bool) -> anyhow::Result<()> {
        let (runtime, client) = self.connect("postgres")?;
        if replace {
            self.remove(database)?;
        }
        let sql = format!("CREATE DATABASE \"{database}\" TEMPLATE template0 ENCODING 'UTF8'");
        runtime.block_on(client.batch_execute(&sql)).with_context(|| {
            format!(
                "the database {database} could not be made; --replace replaces one that is there"
            )
        })
    }

    /// Removes a database if the database exists.
    pub(crate) fn remove(&self, database: &str) -> anyhow::Result<()> {
        let (runtime, client) = self.connect("postgres")?;
        let sql = format!("DROP DATABASE IF EXISTS \"{database}\" WITH (FORCE)");
        runtime
            .block_on(client.batch_execute(&sql))
            .with_context(|| format!("the database {database} could not be removed"))
    }

    /// Runs the maintenance that PostgreSQL would otherwise run within minutes, during the queries.
    pub(crate) fn run_maintenance(&self, database: &str) -> anyhow::Result<()> {
        let (runtime, client) = self.connect(database)?;
        runtime.block_on(client.batch_execute("VACUUM ANALYZE"))?;
        // The role may lack the right to run a checkpoint.
        let _ = runtime.block_on(client.batch_execute("CHECKPOINT"));
        Ok(())
    }

    /// Returns the URL of another database on the same server, for a store.
    pub(crate) fn url_of(url: &str, database: &str) -> String {
        let (scheme, rest) = url.split_once("://").unwrap_or(("postgres", url));
        let (authority, parameters) = rest.split_once('?').map_or((rest, ""), |(a, b)| (a, b));
        let authority = authority.split_once('/').map_or(authority, |(host, _)| host);
        let mark = if parameters.is_empty() { "" } else { "?" };
        format!("{scheme}://{authority}/{database}{mark}{parameters}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_database_of_the_same_server_keeps_all_else() {
        for (url, expected) in [
            (
                "postgres://me:pw@h:5432/nostream?connect_timeout=1",
                "postgres://me:pw@h:5432/x?connect_timeout=1",
            ),
            ("postgresql://h", "postgresql://h/x"),
        ] {
            assert_eq!(SqlServer::url_of(url, "x"), expected);
        }
    }
}
