//! The claim of the relay's own key. The archive notes the public key with which its relay signs,
//! so two servers of one database never sign with different keys.

use std::sync::Arc;
use std::time::Duration;

use hark_codec::hex;
use hark_codec::nostr::npub;
use hark_codec::record::Key;
use serde_json::{Value, json};

use super::key::OwnKey;
use crate::moderation::{AuditAct, Moderation, ModerationError};
use crate::nostr::identity::SharedIdentity;

/// The name of the value with the public key, in the archive.
const VALUE: &str = "self/key";
/// The actor of the note in the audit log.
const BY: &str = "hark serve";
/// Interval after which a claim that has failed is repeated.
const RETRY: Duration = Duration::from_secs(10);

/// Follows the archive's note of the relay's key, until the runtime ends. The relay uses its key
/// only while the archive notes this key. An archive without a note gets a note.
pub(crate) async fn claim_key(key: Arc<OwnKey>, identity: SharedIdentity, moderation: Moderation) {
    let (mut warned, mut replaced) = (None, None);
    loop {
        let (changed, set) = (moderation.changed(), identity.changed());
        let noted = moderation.value(VALUE);
        let noted = noted.as_ref().and_then(Value::as_str);
        let noted = noted.and_then(|digits| hex::decode_32(digits.as_bytes()));
        let is_confirmed = identity.confirms_key(key.public());
        let is_ours = noted == Some(*key.public());
        identity.set_own_key(is_ours.then_some(key.public()));
        if is_ours || !moderation.is_open() {
            changed.await;
        } else if let Some(other) = noted.filter(|other| !is_confirmed || replaced == Some(*other))
        {
            if warned.replace(other) != Some(other) {
                tracing::error!("{}", other_key(key.public(), &other));
            }
            // Either the archive's note changes, or the operator confirms the key.
            tokio::select! {
                () = changed => {}
                () = set => {}
            }
        } else if let Err(error) = note(&key, noted, &moderation).await {
            tracing::warn!(%error, "the relay's own key is not in use yet: it could not be noted");
            tokio::time::sleep(RETRY).await;
        } else {
            // A key that comes back is noted by another server, whose operator confirms it as well.
            replaced = noted;
        }
    }
}

/// Notes the key in the archive.
async fn note(
    key: &OwnKey,
    before: Option<Key>,
    moderation: &Moderation,
) -> Result<(), ModerationError> {
    let shown = |key: &Key| json!(npub::encode(key));
    let act = AuditAct {
        act: "relaykey".into(),
        subject: String::new(),
        before: before.as_ref().map_or(Value::Null, shown),
        after: shown(key.public()),
    };
    let digits = hex::text_32(key.public());
    moderation.set_values(vec![(VALUE.into(), json!(digits))], act, BY).await
}

/// The message about another key in the archive.
fn other_key(own: &Key, other: &Key) -> String {
    let (own, other) = (npub::encode(own), npub::encode(other));
    format!(
        "this server signs nothing: the relay of this archive signs with {other}, and the file in \
         [self] key_file has {own}. Copy the key file of the other servers of this archive. If the \
         relay is to get the new key, set [info] self to {own} on all servers"
    )
}
