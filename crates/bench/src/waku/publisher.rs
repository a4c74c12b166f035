//! The methods of publishing messages to a node, and their publishers.

#[cfg(feature = "libp2p")]
use super::gossip;
use super::messages::{MessageDraft, now_ns};
use super::rest::{RestClient, RestFailure, encoded};
use crate::args::{PublishMethod, WakuBenchArgs};
use crate::target::BenchTarget;
use crate::websocket::Url;

/// A method of publishing messages to a node.
pub(super) enum PublishEndpoint {
    /// The node's REST API, and the path to post to.
    Rest { url: Url, path: String },
    /// A connection between peers.
    #[cfg(feature = "libp2p")]
    Gossip(gossip::GossipEndpoint),
}

/// A publisher with its own connection.
pub(super) enum Publisher {
    Rest {
        client: RestClient,
        path: String,
    },
    #[cfg(feature = "libp2p")]
    Gossip(gossip::GossipPublisher),
}

impl PublishEndpoint {
    /// Returns the endpoint of each node, of the kind that `--publish-by` names.
    pub(super) fn all(args: &WakuBenchArgs, targets: &[BenchTarget]) -> anyhow::Result<Vec<Self>> {
        match args.publish_by {
            PublishMethod::Rest => {
                let path = match &args.pubsub_topic {
                    Some(topic) => format!("/relay/v1/messages/{}", encoded(topic)),
                    None => "/relay/v1/auto/messages".into(),
                };
                let door = |target: &BenchTarget| Self::Rest {
                    url: target.url.clone(),
                    path: path.clone(),
                };
                Ok(targets.iter().map(door).collect())
            }
            #[cfg(feature = "libp2p")]
            PublishMethod::Gossip => {
                let given = [&args.peer, &args.against_peer];
                let doors = targets.iter().zip(given).map(|(target, given)| {
                    Ok(Self::Gossip(gossip::GossipEndpoint::new(
                        args,
                        &target.url,
                        given.as_ref(),
                    )?))
                });
                doors.collect()
            }
        }
    }

    /// Whether the node answers a publication once the message is stored.
    pub(super) fn answers(&self) -> bool {
        matches!(self, Self::Rest { .. })
    }

    /// Returns the address to which messages are published.
    pub(super) fn addr(&self) -> String {
        match self {
            Self::Rest { url, .. } => url.text.clone(),
            #[cfg(feature = "libp2p")]
            Self::Gossip(door) => door.addr.to_string(),
        }
    }

    /// Connects `count` publishers.
    pub(super) fn open(&self, count: usize) -> anyhow::Result<Vec<Publisher>> {
        match self {
            Self::Rest { url, path } => (0..count)
                .map(|_| {
                    let client = RestClient::open(url)?;
                    Ok(Publisher::Rest { client, path: path.clone() })
                })
                .collect(),
            #[cfg(feature = "libp2p")]
            Self::Gossip(door) => {
                Ok(door.open(count)?.into_iter().map(Publisher::Gossip).collect())
            }
        }
    }
}

impl Publisher {
    /// Publishes a message with the current time. If the message was accepted, returns its time in
    /// ns since 1970.
    pub(super) fn publish(
        &mut self,
        draft: &MessageDraft,
    ) -> anyhow::Result<Result<i64, RestFailure>> {
        match self {
            Self::Rest { client, path } => {
                let (time_ns, mut json) = (now_ns()?, Vec::new());
                draft.write_json(time_ns, &mut json);
                Ok(client.post(path, json)?.map(|_| time_ns))
            }
            #[cfg(feature = "libp2p")]
            Self::Gossip(peer) => peer.publish(draft),
        }
    }
}
