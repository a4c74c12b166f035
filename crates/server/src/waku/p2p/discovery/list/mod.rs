//! Fetches lists of nodes from the DNS (EIP-1459), with bounds for the time, the number of look-ups
//! and the number of records. Only entries that the list's key has signed are returned.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::time::Duration;

use hickory_resolver::TokioResolver;
use hickory_resolver::config::{ConnectionConfig, NameServerConfig, ResolveHosts, ResolverConfig};
use hickory_resolver::net::NetError;
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::proto::rr::RData;

use super::record::NodeRecord;
use super::tree::{NodeListUrl, TreeEntry, TreeFault, TreeRoot, read_entry};
use crate::waku::p2p::shuffle::shuffled;

/// Maximum number of look-ups for a list and the lists that it links to.
const LOOK_UPS_MAX: usize = 400;
/// Maximum number of records from a list and the lists that it links to.
const RECORDS_MAX: usize = 200;
/// Maximum number of lists: the list itself, and the lists that it links to.
const LISTS_MAX: usize = 4;
/// Maximum length of an entry, in bytes. A root has some 250 bytes, and a record up to 404.
const TEXT_MAX: usize = 4_096;
/// How long a look-up may take.
const LOOK_UP_MAX: Duration = Duration::from_secs(5);
/// How long all look-ups for a list may take.
const TIME_MAX: Duration = Duration::from_mins(1);

/// Why a list was fetched in part or not at all.
#[derive(Clone, Debug, thiserror::Error)]
pub(in crate::waku) enum ListFault {
    #[error("the DNS did not answer: {0}")]
    LookUp(String),
    #[error(transparent)]
    Tree(#[from] TreeFault),
    #[error("the look-ups took more than {} s", TIME_MAX.as_secs())]
    Time,
    #[error("the list needs more than {LOOK_UPS_MAX} look-ups")]
    LookUps,
}

/// The result of fetching a list. It may have both records and a fault, because a faulty entry does
/// not end the fetch.
#[derive(Debug, Default)]
pub(super) struct FetchedList {
    pub(super) records: Vec<NodeRecord>,
    pub(super) fault: Option<ListFault>,
}

/// The client of DNS servers.
pub(super) struct ListReader {
    resolver: TokioResolver,
    /// The sequence number of the last root of each domain. A root with a lower number is an old
    /// answer.
    seqs: HashMap<String, u64>,
}

impl ListReader {
    /// Creates a client of these DNS servers, or of the system's servers if none is named.
    pub(super) fn new(servers: &[SocketAddr]) -> Result<Self, NetError> {
        let mut builder = if servers.is_empty() {
            TokioResolver::builder_tokio()?
        } else {
            let servers = servers.iter().map(|server| {
                let at = |mut connection: ConnectionConfig| {
                    connection.port = server.port();
                    connection
                };
                let connections = vec![at(ConnectionConfig::udp()), at(ConnectionConfig::tcp())];
                NameServerConfig::new(server.ip(), true, connections)
            });
            let config = ResolverConfig::from_parts(None, Vec::new(), servers.collect());
            TokioResolver::builder_with_config(config, TokioRuntimeProvider::default())
        };
        let options = builder.options_mut();
        options.timeout = LOOK_UP_MAX;
        options.attempts = 1;
        options.use_hosts_file = ResolveHosts::Never;
        // Each entry is looked up once per fetch, so a cache is of no use.
        options.cache_size = 0;
        Ok(Self { resolver: builder.build()?, seqs: HashMap::new() })
    }

    /// Fetches a list and the lists that it links to.
    pub(super) async fn fetch(&mut self, url: &NodeListUrl) -> FetchedList {
        let mut walk = ListWalk { left: LOOK_UPS_MAX, ..ListWalk::default() };
        let walking = walk.run(self, url);
        if tokio::time::timeout(TIME_MAX, walking).await.is_err() {
            walk.fetched.fault.get_or_insert(ListFault::Time);
        }
        walk.fetched
    }

    /// Returns the TXT records of a name, each joined to one text.
    async fn look_up(&self, name: &str) -> Result<Vec<String>, ListFault> {
        // The dot prevents a search in the machine's own domains.
        let looking = self.resolver.txt_lookup(format!("{name}."));
        let answer = match tokio::time::timeout(LOOK_UP_MAX * 2, looking).await {
            Ok(answer) => answer.map_err(|error| ListFault::LookUp(error.to_string()))?,
            Err(_) => return Err(ListFault::LookUp(format!("{name} was not answered in time"))),
        };
        let texts = answer.answers().iter().filter_map(|record| match &record.data {
            RData::TXT(text) => Some(text.txt_data.concat()),
            _ => None,
        });
        let short = texts.filter(|text| text.len() <= TEXT_MAX);
        Ok(short.filter_map(|text| String::from_utf8(text).ok()).collect())
    }

    /// Looks up the root of a list. A root that is older than an earlier root is refused: otherwise
    /// anyone who controls the DNS answers could bring an old list back.
    async fn root(&mut self, url: &NodeListUrl) -> Result<TreeRoot, ListFault> {
        let texts = self.look_up(&url.domain).await?;
        let mut fault = TreeFault::Root(url.domain.clone());
        for text in &texts {
            match url.read_root(text) {
                Ok(root) => {
                    let last = self.seqs.entry(url.domain.clone()).or_insert(root.seq);
                    if root.seq < *last {
                        return Err(TreeFault::Older(root.seq, *last).into());
                    }
                    *last = root.seq;
                    return Ok(root);
                }
                // A domain may also have TXT records that are no roots.
                Err(other @ TreeFault::Signature) => fault = other,
                Err(_) => {}
            }
        }
        Err(fault.into())
    }
}

/// The state of fetching a list.
#[derive(Default)]
struct ListWalk {
    fetched: FetchedList,
    /// The number of look-ups that may still be made.
    left: usize,
    /// The lists and entries that have been looked up or will be. Each is looked up once, so a
    /// list that links to itself ends.
    seen: HashSet<String>,
}

impl ListWalk {
    async fn run(&mut self, reader: &mut ListReader, url: &NodeListUrl) {
        let mut lists = vec![url.clone()];
        self.seen.insert(url.domain.clone());
        let mut count = 0;
        while let Some(list) = lists.pop() {
            count += 1;
            if let Err(fault) = self.walk(reader, &list, &mut lists).await {
                self.fetched.fault.get_or_insert(fault);
            }
            if count == LISTS_MAX {
                break;
            }
        }
    }

    /// Fetches one list. Appends to `lists` the lists that the fetched list links to. Entries are
    /// fetched in random order, so each fetch of a list above the bounds returns another part of
    /// the list.
    async fn walk(
        &mut self,
        reader: &mut ListReader,
        list: &NodeListUrl,
        lists: &mut Vec<NodeListUrl>,
    ) -> Result<(), ListFault> {
        self.charge()?;
        let root = reader.root(list).await?;
        let mut entries: Vec<String> = root.entries.into();
        while let Some(entry) = entries.pop() {
            if self.fetched.records.len() >= RECORDS_MAX {
                return Ok(());
            }
            let name = format!("{entry}.{}", list.domain);
            if !self.seen.insert(name.to_ascii_lowercase()) {
                continue;
            }
            self.charge()?;
            match self.entry(reader, &entry, &name).await {
                Ok(TreeEntry::Branch(children)) => entries.extend(shuffled(children)),
                Ok(TreeEntry::Link(url)) => {
                    if self.seen.insert(url.domain.clone()) && lists.len() < LISTS_MAX {
                        lists.push(url);
                    }
                }
                Ok(TreeEntry::Node(record)) => self.fetched.records.push(*record),
                // A faulty entry does not end the fetch.
                Err(fault) => drop(self.fetched.fault.get_or_insert(fault)),
            }
        }
        Ok(())
    }

    async fn entry(
        &self,
        reader: &ListReader,
        entry: &str,
        name: &str,
    ) -> Result<TreeEntry, ListFault> {
        let texts = reader.look_up(name).await?;
        let mut fault = TreeFault::Form(entry.into());
        for text in &texts {
            match read_entry(entry, text) {
                Ok(entry) => return Ok(entry),
                Err(other) => fault = other,
            }
        }
        Err(fault.into())
    }

    fn charge(&mut self) -> Result<(), ListFault> {
        self.left = self.left.checked_sub(1).ok_or(ListFault::LookUps)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
