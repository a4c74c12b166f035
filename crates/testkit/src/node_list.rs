//! A DNS server on loopback, and lists of nodes for it (EIP-1459), signed and faulty.

use std::collections::HashMap;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use data_encoding::{BASE32_NOPAD, BASE64URL_NOPAD};
use enr::k256::ecdsa::SigningKey;
use enr::{EnrKey as _, EnrPublicKey as _};
use sha3::{Digest as _, Keccak256};

/// The texts of a server, by name.
pub type DnsTexts = HashMap<String, String>;

/// A DNS server that answers TXT questions. Dropping the value stops the server.
pub struct DnsServer {
    /// The server's address.
    pub at: SocketAddr,
    /// Number of questions that were received.
    pub questions: Arc<AtomicUsize>,
    is_over: Arc<AtomicBool>,
}

impl DnsServer {
    /// Starts a server that answers each question after `pause`. `text` returns the text of a name
    /// in lower case; `None` if there is no such name.
    pub fn start(pause: Duration, text: impl Fn(&str) -> Option<String> + Send + 'static) -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a port is free");
        socket.set_read_timeout(Some(Duration::from_millis(50))).expect("is set");
        let at = socket.local_addr().expect("has an address");
        let (questions, is_over) = (Arc::<AtomicUsize>::default(), Arc::<AtomicBool>::default());
        let (count, over) = (Arc::clone(&questions), Arc::clone(&is_over));
        std::thread::spawn(move || {
            let mut bytes = [0; 1_500];
            while !over.load(Ordering::Relaxed) {
                let Ok((len, from)) = socket.recv_from(&mut bytes) else { continue };
                count.fetch_add(1, Ordering::Relaxed);
                std::thread::sleep(pause);
                if let Some(reply) = answer(&bytes[..len], &text) {
                    // The client may be gone.
                    let _ = socket.send_to(&reply, from);
                }
            }
        });
        Self { at, questions, is_over }
    }

    /// Starts a server with these texts.
    pub fn with(texts: DnsTexts) -> Self {
        Self::start(Duration::ZERO, move |name| texts.get(name).cloned())
    }
}

impl Drop for DnsServer {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}

/// Returns the answer to a question. `None` if the bytes are no question.
fn answer(question: &[u8], text: &dyn Fn(&str) -> Option<String>) -> Option<Vec<u8>> {
    let (mut labels, mut at) = (Vec::new(), 12);
    loop {
        let len = usize::from(*question.get(at)?);
        at += 1;
        if len == 0 {
            break;
        }
        labels.push(String::from_utf8_lossy(question.get(at..at + len)?).to_lowercase());
        at += len;
    }
    let section = question.get(12..at + 4)?;
    let found = text(&labels.join("."));
    let mut out = question[..2].to_vec();
    out.extend([0x81, if found.is_some() { 0x80 } else { 0x83 }]);
    out.extend([0, 1, 0, u8::from(found.is_some()), 0, 0, 0, 0]);
    out.extend(section);
    if let Some(text) = found {
        let parts: Vec<u8> = text
            .as_bytes()
            .chunks(255)
            .flat_map(|part| std::iter::once(part.len() as u8).chain(part.iter().copied()))
            .collect();
        // The head of the answer: the name of the question, TXT, IN, and one second to live.
        out.extend([0xc0, 12, 0, 16, 0, 1, 0, 0, 0, 1]);
        out.extend((parts.len() as u16).to_be_bytes());
        out.extend(parts);
    }
    Some(out)
}

/// Whether a node's record has an address for UDP.
pub fn has_udp_port(record: &str) -> bool {
    let record = record.parse::<enr::Enr<SigningKey>>().expect("a record");
    record.udp4_socket().is_some()
}

/// A list of nodes under construction.
pub struct NodeList {
    key: SigningKey,
    domain: String,
    /// The texts of the list, by name in lower case.
    pub texts: DnsTexts,
}

impl NodeList {
    /// Creates a list with a fixed key.
    pub fn new(domain: &str) -> Self {
        let key = SigningKey::from_slice(&[7; 32]).expect("a key");
        Self { key, domain: domain.into(), texts: DnsTexts::new() }
    }

    /// Returns the URL of the list.
    pub fn url(&self) -> String {
        let key = BASE32_NOPAD.encode(&self.key.public().encode());
        format!("enrtree://{key}@{}", self.domain)
    }

    /// Adds an entry, and returns its hash.
    pub fn add(&mut self, text: &str) -> String {
        let hash = BASE32_NOPAD.encode(&Keccak256::digest(text.as_bytes())[..16]);
        self.add_as(&hash, text);
        hash
    }

    /// Adds an entry under any name.
    pub fn add_as(&mut self, name: &str, text: &str) {
        self.texts.insert(format!("{name}.{}", self.domain).to_lowercase(), text.into());
    }

    /// Adds a branch with these entries, and returns its hash.
    pub fn branch(&mut self, children: &[String]) -> String {
        self.add(&format!("enrtree-branch:{}", children.join(",")))
    }

    /// Signs the root. `entries` and `links` are the hashes of the first entry for records and of
    /// the first entry for links.
    pub fn sign(&mut self, entries: &str, links: &str, seq: u64) {
        let signed = format!("enrtree-root:v1 e={entries} l={links} seq={seq}");
        let mut signature = self.key.sign_v4(signed.as_bytes()).expect("is signed");
        signature.push(0);
        let signature = BASE64URL_NOPAD.encode(&signature);
        self.texts.insert(self.domain.clone(), format!("{signed} sig={signature}"));
    }
}
