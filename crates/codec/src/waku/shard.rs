//! Shards: the pubsub topics on which messages are relayed, and the mapping from content topics to
//! shards (RFC 51/WAKU2-RELAY-SHARDING).

use std::fmt;
use std::str::FromStr;

use sha2::{Digest as _, Sha256};

/// A shard of a network. Its text form is its pubsub topic: `/waku/2/rs/<cluster>/<shard>`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Shard {
    /// Number of the network.
    pub cluster: u16,
    /// Number of the shard in the network.
    pub index: u16,
}

/// The error for a text that is not the pubsub topic of a shard, or not a content topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TopicError {
    /// Not the pubsub topic of a [`Shard`].
    #[error("a pubsub topic is /waku/2/rs/<cluster>/<shard>")]
    Pubsub,
    /// Not a content topic that [`Shard::of`] accepts.
    #[error("a content topic is /<application>/<version>/<name>/<encoding>")]
    Content,
}

impl fmt::Display for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "/waku/2/rs/{}/{}", self.cluster, self.index)
    }
}

impl FromStr for Shard {
    type Err = TopicError;

    fn from_str(text: &str) -> Result<Self, TopicError> {
        let numbers = text.strip_prefix("/waku/2/rs/").and_then(|rest| rest.split_once('/'));
        let (cluster, index) = numbers.ok_or(TopicError::Pubsub)?;
        // Only the spelling that `Display` writes is accepted, because another spelling would be
        // another topic.
        let is_plain = |text: &str| {
            text.bytes().all(|byte| byte.is_ascii_digit())
                && (text == "0" || !text.starts_with('0'))
        };
        let number =
            |text: &str| text.parse().ok().filter(|_| is_plain(text)).ok_or(TopicError::Pubsub);
        Ok(Self { cluster: number(cluster)?, index: number(index)? })
    }
}

impl Shard {
    /// Maps a content topic to its shard ("autosharding") in a cluster of `shards` shards. The
    /// shard's number is the last 8 bytes of SHA-256 over the topic's application and version,
    /// modulo `shards`.
    pub fn of(content_topic: &str, cluster: u16, shards: u16) -> Result<Self, TopicError> {
        let mut parts = content_topic.strip_prefix('/').ok_or(TopicError::Content)?.split('/');
        let parts: [Option<&str>; 6] = std::array::from_fn(|_| parts.next());
        // The generation may be left out. The only generation so far is 0.
        let ([Some("0"), Some(application), Some(version), Some(_), Some(_), None]
        | [Some(application), Some(version), Some(_), Some(_), None, None]) = parts
        else {
            return Err(TopicError::Content);
        };
        if parts.contains(&Some("")) {
            return Err(TopicError::Content);
        }
        let hash = Sha256::new().chain_update(application).chain_update(version).finalize();
        let mut last = [0; 8];
        last.copy_from_slice(&hash[24..]);
        let index = u64::from_be_bytes(last) % u64::from(shards.max(1));
        Ok(Self { cluster, index: index as u16 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shard_is_its_pubsub_topic() {
        let shard = Shard { cluster: 16, index: 32 };
        assert_eq!(shard.to_string(), "/waku/2/rs/16/32");
        assert_eq!("/waku/2/rs/16/32".parse(), Ok(shard));
        assert_eq!("/waku/2/rs/0/0".parse(), Ok(Shard { cluster: 0, index: 0 }));
        for text in [
            "",
            "/waku/2/rs/16",
            "/waku/2/rs/16/",
            "/waku/2/rs/16/x",
            "/waku/2/rs/1/2/3",
            "/waku/2/rs/1/+2",
            "/waku/2/rs/01/2",
            "/waku/2/rs/1/70000",
        ] {
            assert_eq!(text.parse::<Shard>(), Err(TopicError::Pubsub), "{text}");
        }
    }

    /// These examples are also in the tests of nwaku and js-waku.
    #[test]
    fn content_topics_belong_to_the_shards_of_other_nodes() {
        for (topic, index) in [
            ("/toychat/2/huilong/proto", 3),
            ("/0/toychat/2/huilong/proto", 3),
            ("/toychat/2/other/json", 3),
            ("/statusim/1/a/b", Shard::of("/statusim/1/c/d", 1, 8).unwrap().index),
        ] {
            assert_eq!(Shard::of(topic, 1, 8), Ok(Shard { cluster: 1, index }), "{topic}");
        }
        for topic in ["", "toychat/2/huilong/proto", "/toychat/2/huilong", "//2/a/b", "/1/a/1/b/c"]
        {
            assert_eq!(Shard::of(topic, 1, 8), Err(TopicError::Content), "{topic}");
        }
    }
}
