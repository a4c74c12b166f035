//! The nodes that were reached lately, in a small file of the data directory. After a restart, this
//! node dials them, so it needs neither a list of nodes nor an entry node to answer.
//!
//! The file has the record of a node in each line, and begins with the node that was reached last.
//! Anyone may have written the file, so its records are treated like those of strangers.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use libp2p::PeerId;

use super::add::add;
use super::record::NodeRecord;
use crate::key_file;
use crate::public_address::is_public;
use crate::waku::metrics::{NodeSource, RecordRefusal};
use crate::waku::node::WakuNode;
use crate::waku::p2p::addr::ip;

/// Maximum number of nodes in the file.
const NODES_MAX: usize = 64;
/// Maximum size of the file, in bytes. A line has up to 405 bytes.
const FILE_MAX: u64 = 32 << 10;
/// Minimum interval between two writes of the file.
const WRITE_EVERY: Duration = Duration::from_mins(1);

/// The nodes that were reached lately; see the module.
pub(super) struct RememberedNodes {
    file: PathBuf,
    /// The node that was reached last comes first.
    nodes: Vec<NodeRecord>,
    /// Whether the file has other nodes.
    is_changed: bool,
    /// When the file was written last.
    written: Option<Instant>,
}

impl RememberedNodes {
    /// Reads the file, and adds its nodes to the known nodes. A file that cannot be read has no
    /// nodes.
    pub(super) fn read(waku: &WakuNode, file: PathBuf, private: bool) -> Self {
        let own = waku.network.as_ref().map(|network| network.id);
        let text = read(&file).unwrap_or_else(|error| {
            tracing::warn!(%error, file = %file.display(), "could not be read");
            String::new()
        });
        let mut remembered = Self { file, nodes: Vec::new(), is_changed: false, written: None };
        let mut ignored = 0;
        for line in text.lines() {
            match usable(line, own, private) {
                Ok(record) if remembered.nodes.len() < NODES_MAX => {
                    if add(waku, record.clone(), NodeSource::File, None) {
                        remembered.nodes.push(record);
                    } else {
                        ignored += 1;
                    }
                }
                Ok(_) => ignored += 1,
                Err(refusal) => {
                    waku.metrics.record_refusals.of(NodeSource::File).of(refusal).add(1);
                    ignored += 1;
                }
            }
        }
        if ignored > 0 {
            let (file, known) = (remembered.file.display(), remembered.nodes.len());
            tracing::warn!(%file, known, ignored, "not all records of the file name usable nodes");
        }
        remembered
    }

    /// Notes the nodes that are reached now.
    pub(super) fn note(&mut self, reached: &[NodeRecord]) {
        let is_reached =
            |node: &NodeRecord| reached.iter().any(|reached| reached.peer == node.peer);
        let (mut nodes, others): (Vec<_>, Vec<_>) =
            self.nodes.iter().cloned().partition(is_reached);
        for node in reached {
            match nodes.iter_mut().find(|known| known.peer == node.peer) {
                Some(known) => *known = node.clone(),
                None => nodes.insert(0, node.clone()),
            }
        }
        nodes.extend(others);
        nodes.truncate(NODES_MAX);
        let versions = |nodes: &[NodeRecord]| -> Vec<(PeerId, u64)> {
            nodes.iter().map(|node| (node.peer, node.seq())).collect()
        };
        self.is_changed |= versions(&nodes) != versions(&self.nodes);
        self.nodes = nodes;
    }

    /// Writes the file if the nodes have changed, but not too often.
    pub(super) fn write_if_due(&mut self, now: Instant) {
        if self.written.is_none_or(|at| now.duration_since(at) >= WRITE_EVERY) {
            self.write(now);
        }
    }

    /// Writes the file if the nodes have changed.
    pub(super) fn write(&mut self, now: Instant) {
        if !self.is_changed {
            return;
        }
        let mut lines: Vec<_> = self.nodes.iter().map(ToString::to_string).collect();
        // The last line ends with a line feed, too.
        lines.push(String::new());
        self.written = Some(now);
        match key_file::replace(&self.file, lines.join("\n").as_bytes()) {
            Ok(()) => self.is_changed = false,
            Err(error) => {
                tracing::warn!(%error, file = %self.file.display(), "could not be written");
            }
        }
    }
}

/// Returns the text of the file. A missing file has no text.
fn read(file: &std::path::Path) -> io::Result<String> {
    let mut bytes = Vec::new();
    match File::open(file) {
        Ok(file) => file.take(FILE_MAX).read_to_end(&mut bytes)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
        Err(error) => return Err(error),
    };
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Reads a line of the file. Refuses the record of this node, and a record without an address that
/// may be dialled: a public address, or any address if `private` is set.
fn usable(line: &str, own: Option<PeerId>, private: bool) -> Result<NodeRecord, RecordRefusal> {
    let record = NodeRecord::parse(line).map_err(|_| RecordRefusal::Invalid)?;
    let may_dial = |addr| private || ip(addr).is_none_or(is_public);
    if own == Some(record.peer) || !record.addrs.iter().any(may_dial) {
        return Err(RecordRefusal::Address);
    }
    Ok(record)
}

#[cfg(test)]
mod tests {
    use hark_testkit::disk::scratch;
    use libp2p::identity::Keypair;

    use super::super::OwnRecord;
    use super::*;
    use crate::waku::NodeConfig;

    fn record(addr: &str) -> NodeRecord {
        let key = Keypair::generate_secp256k1();
        let mut own = OwnRecord::new(&key, &NodeConfig::default(), true).unwrap();
        own.sign(&[addr.parse().unwrap()]).unwrap()
    }

    fn remembered(file: PathBuf) -> RememberedNodes {
        RememberedNodes { file, nodes: Vec::new(), is_changed: false, written: None }
    }

    fn peers(remembered: &RememberedNodes) -> Vec<PeerId> {
        remembered.nodes.iter().map(|node| node.peer).collect()
    }

    #[test]
    fn only_nodes_that_may_be_dialled_are_read() {
        let (public, private) = (record("/ip4/8.8.8.8/tcp/1"), record("/ip4/10.0.0.1/tcp/1"));
        let read = |record: &NodeRecord, own, private| {
            usable(&record.to_string(), own, private).map(|record| record.peer)
        };
        assert_eq!(read(&public, Some(private.peer), false), Ok(public.peer));
        assert_eq!(read(&public, Some(public.peer), true), Err(RecordRefusal::Address));
        assert_eq!(read(&private, None, false), Err(RecordRefusal::Address));
        assert_eq!(read(&private, None, true), Ok(private.peer));
        let named = record("/dns4/node.example/tcp/1");
        assert_eq!(read(&named, None, false), Ok(named.peer));
        let (text, long) = (public.to_string(), "enr:".repeat(9_999));
        for garbage in ["", "enr:", "\u{fffd}", &text[..90], &long] {
            let read = usable(garbage, None, true).map(|record| record.peer);
            assert_eq!(read, Err(RecordRefusal::Invalid), "{garbage}");
        }
    }

    #[test]
    fn the_nodes_that_were_reached_last_stay_in_the_file() {
        let folder = scratch("remembered");
        std::fs::create_dir(&folder).unwrap();
        let file = folder.join("waku.nodes");
        let mut nodes = remembered(file.clone());
        let all: Vec<_> = (0..70).map(|at| record(&format!("/ip4/8.8.{at}.8/tcp/1"))).collect();
        nodes.note(&all[..1]);
        let now = Instant::now();
        nodes.write_if_due(now);
        let written = || std::fs::read_to_string(&file).unwrap();
        assert_eq!(written(), format!("{}\n", all[0]));
        // Node 0 stays connected, and so remains although 69 other nodes are reached.
        for other in &all[1..] {
            nodes.note(&[other.clone(), all[0].clone()]);
        }
        assert_eq!(nodes.nodes.len(), NODES_MAX);
        assert_eq!(peers(&nodes)[..2], [all[69].peer, all[0].peer]);
        assert!(!peers(&nodes).contains(&all[6].peer) && peers(&nodes).contains(&all[7].peer));
        nodes.write_if_due(now);
        assert_eq!(written().lines().count(), 1, "the file is written once a minute");
        nodes.write_if_due(now + WRITE_EVERY);
        assert_eq!(written().lines().next().unwrap(), all[69].to_string());
        assert!(written().len() as u64 <= FILE_MAX);
        // Without a change, the file is not written.
        std::fs::remove_file(&file).unwrap();
        nodes.note(&[all[0].clone(), all[69].clone()]);
        nodes.write(now);
        assert!(!file.exists());
        nodes.note(&[]);
        nodes.note(&all[..1]);
        nodes.write(now);
        assert_eq!(written().lines().next().unwrap(), all[0].to_string());
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_file_that_cannot_be_read_or_written_has_no_nodes() {
        let folder = scratch("remembered-fault");
        let file = folder.join("waku.nodes");
        assert_eq!(read(&file).unwrap(), "", "a missing file");
        let mut nodes = remembered(file.clone());
        nodes.note(&[record("/ip4/8.8.8.8/tcp/1")]);
        nodes.write(Instant::now());
        assert!(nodes.is_changed, "the folder is missing");
        std::fs::create_dir_all(&file).unwrap();
        assert!(read(&file).is_err(), "a folder");
        std::fs::remove_dir(&file).unwrap();
        nodes.write(Instant::now());
        assert!(!nodes.is_changed && read(&file).unwrap().starts_with("enr:"));
        std::fs::remove_dir_all(folder).unwrap();
    }
}
