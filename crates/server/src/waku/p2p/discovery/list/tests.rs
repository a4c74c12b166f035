//! Lists from a DNS server on loopback: a good one, and hostile ones.

use std::sync::atomic::Ordering;

use hark_testkit::node_list::{DnsServer, DnsTexts, NodeList};
use libp2p::identity::Keypair;

use super::super::OwnRecord;
use super::*;
use crate::waku::NodeConfig;

/// The records of nodes with new keys.
fn records(count: usize) -> Vec<NodeRecord> {
    let record = |at: usize| {
        let key = Keypair::generate_secp256k1();
        let mut own = OwnRecord::new(&key, &NodeConfig::default(), true).unwrap();
        own.sign(&[format!("/ip4/127.0.0.1/tcp/{}", at + 1).parse().unwrap()]).unwrap()
    };
    (0..count).map(record).collect()
}

/// Adds entries in branches of at most 8, and returns the name of the root branch.
fn branches(list: &mut NodeList, mut entries: Vec<String>) -> String {
    loop {
        let mut upper = Vec::new();
        for part in entries.chunks(8) {
            upper.push(list.branch(part));
        }
        if upper.len() == 1 {
            return upper.remove(0);
        }
        entries = upper;
    }
}

fn with_records(list: &mut NodeList, records: &[NodeRecord], seq: u64) {
    let entries = records.iter().map(|record| list.add(&record.to_string())).collect();
    let entries = branches(list, entries);
    let links = list.branch(&[]);
    list.sign(&entries, &links, seq);
}

/// Fetches a list, and returns the ids of its nodes and the text of the fault.
async fn fetched(reader: &mut ListReader, url: &str) -> (HashSet<libp2p::PeerId>, String) {
    let found = reader.fetch(&url.parse().unwrap()).await;
    let fault = found.fault.map_or_else(String::new, |fault| fault.to_string());
    (found.records.iter().map(|record| record.peer).collect(), fault)
}

async fn fetched_from(server: &DnsServer, url: &str) -> (HashSet<libp2p::PeerId>, String) {
    fetched(&mut ListReader::new(&[server.at]).unwrap(), url).await
}

fn ids(records: &[NodeRecord]) -> HashSet<libp2p::PeerId> {
    records.iter().map(|record| record.peer).collect()
}

#[tokio::test]
async fn a_list_and_a_linked_list_are_read_whole() {
    let nodes = records(30);
    let mut list = NodeList::new("nodes.example");
    let mut other = NodeList::new("more.example");
    with_records(&mut other, &nodes[20..], 1);
    let entries: Vec<_> = nodes[..20].iter().map(|record| list.add(&record.to_string())).collect();
    let entries = branches(&mut list, entries);
    let link = list.add(&other.url());
    // A link back to the first list ends there.
    let back = list.add(&list.url());
    let links = list.branch(&[link, back]);
    list.sign(&entries, &links, 3);
    let mut texts = list.texts.clone();
    texts.extend(other.texts.clone());
    let server = DnsServer::with(texts);
    let (found, fault) = fetched_from(&server, &list.url()).await;
    assert_eq!((found, fault.as_str()), (ids(&nodes), ""));
}

#[tokio::test]
async fn forged_lists_are_refused() {
    let nodes = records(3);
    let mut list = NodeList::new("nodes.example");
    with_records(&mut list, &nodes, 5);
    let url = list.url();
    // A root that was changed after it was signed.
    let root = list.texts["nodes.example"].clone();
    let mut forged = list.texts.clone();
    forged.insert("nodes.example".into(), root.replace("seq=5", "seq=6"));
    let (found, fault) = fetched_from(&DnsServer::with(forged), &url).await;
    assert!(found.is_empty() && fault.contains("signature"), "{fault}");
    // An entry whose text was replaced. The other entries are read.
    let stranger = records(1).remove(0);
    let mut exchanged = list.texts.clone();
    let victim = nodes[0].to_string();
    for text in exchanged.values_mut().filter(|text| **text == victim) {
        *text = stranger.to_string();
    }
    let (found, fault) = fetched_from(&DnsServer::with(exchanged), &url).await;
    assert_eq!(found, ids(&nodes[1..]), "{fault}");
    assert!(fault.contains("another hash"), "{fault}");
    // No list at all.
    let (found, fault) = fetched_from(&DnsServer::with(DnsTexts::new()), &url).await;
    assert!(found.is_empty() && fault.contains("DNS"), "{fault}");
    let no_list = DnsTexts::from([("nodes.example".to_owned(), "v=spf1 -all".to_owned())]);
    let (found, fault) = fetched_from(&DnsServer::with(no_list), &url).await;
    assert!(found.is_empty() && fault.contains("no root"), "{fault}");
}

#[tokio::test]
async fn an_older_root_is_refused() {
    let nodes = records(4);
    let mut list = NodeList::new("nodes.example");
    with_records(&mut list, &nodes[..2], 5);
    let url = list.url();
    let server = DnsServer::with(list.texts.clone());
    let mut reader = ListReader::new(&[server.at]).unwrap();
    assert_eq!(fetched(&mut reader, &url).await.0, ids(&nodes[..2]));
    with_records(&mut list, &nodes[2..], 4);
    let older = DnsServer::with(list.texts.clone());
    let mut next = ListReader::new(&[older.at]).unwrap();
    next.seqs = reader.seqs;
    let (found, fault) = fetched(&mut next, &url).await;
    assert!(found.is_empty() && fault.contains("earlier answer had 5"), "{fault}");
}

#[tokio::test]
async fn loops_and_giant_lists_end() {
    // Branches that name each other cannot exist, since a name is a hash. An entry or branch that
    // several branches name, or one branch repeatedly, is looked up once.
    let mut list = NodeList::new("nodes.example");
    let node = records(1).remove(0);
    let entry = list.add(&node.to_string());
    let branch = list.branch(&[entry.clone(), entry.clone(), entry.to_lowercase()]);
    let top = list.branch(&[branch.clone(), branch.clone(), entry]);
    list.sign(&top, &branch, 1);
    let server = DnsServer::with(list.texts.clone());
    assert_eq!(fetched_from(&server, &list.url()).await.0, ids(&[node]));
    assert_eq!(server.questions.load(Ordering::Relaxed), 4);

    // A server that answers every unknown name with a branch. The name is not the hash of the
    // branch.
    let mut list = NodeList::new("nodes.example");
    let top = list.branch(&["A".repeat(26), "B".repeat(26)]);
    list.sign(&top, &top, 1);
    let texts = list.texts.clone();
    let endless = DnsServer::start(Duration::ZERO, move |name| {
        texts.get(name).cloned().or_else(|| Some(format!("enrtree-branch:{}", "C".repeat(26))))
    });
    let (found, fault) = fetched_from(&endless, &list.url()).await;
    assert!(found.is_empty() && fault.contains("another hash"), "{fault}");
    assert!(endless.questions.load(Ordering::Relaxed) <= 4);

    // A valid list that is too long is read in part.
    let mut list = NodeList::new("nodes.example");
    let nodes = records(RECORDS_MAX + 50);
    with_records(&mut list, &nodes, 1);
    let (found, _) = fetched_from(&DnsServer::with(list.texts.clone()), &list.url()).await;
    assert_eq!(found.len(), RECORDS_MAX);
    // A valid list with too many entries that are no records.
    let mut list = NodeList::new("nodes.example");
    let links: Vec<_> =
        (0..LOOK_UPS_MAX + 50).map(|at| list.add(&format!("unknown {at}"))).collect();
    let links = branches(&mut list, links);
    list.sign(&links, &links, 1);
    let long = DnsServer::with(list.texts.clone());
    let (found, fault) = fetched_from(&long, &list.url()).await;
    assert!(found.is_empty() && fault.contains("unknown form"), "{fault}");
    assert_eq!(long.questions.load(Ordering::Relaxed), LOOK_UPS_MAX);
}

#[tokio::test]
async fn a_silent_server_ends_the_attempt() {
    let silent = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut reader = ListReader::new(&[silent.local_addr().unwrap()]).unwrap();
    let (found, fault) = fetched(&mut reader, &NodeList::new("nodes.example").url()).await;
    assert!(found.is_empty() && fault.contains("DNS"), "{fault}");
}
