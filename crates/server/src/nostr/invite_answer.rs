//! The answer to a REQ of a member that asks for an invite (NIP-43): an event with a new code, and
//! then the stored events as in any other answer.

use std::sync::Arc;

use hark_archive::Record;
use hark_codec::record::Key;
use hark_networks::nostr::NostrRefusal;

use super::Relay;
use super::own::{INVITE_KIND, InviteRequest, MemberInvites};
use super::page::StoredAnswer;
use super::question_refusals::bug;
use crate::rate::RatedConnection;

/// Makes the invite for an answer, and hands the answer to the readers. If the relay makes no
/// invite, a question that asks for nothing else is refused. Any other question is answered without
/// an invite. The permit of the answer bounds the number of these tasks.
pub(super) fn answer_with_invite(
    relay: &Arc<Relay>,
    request: InviteRequest,
    answer: StoredAnswer,
    rated: RatedConnection,
) {
    let relay = Arc::clone(relay);
    tokio::spawn(async move {
        let made = match &relay.invites {
            Some(invites) => make(invites, &rated, request.member).await,
            None => Err(bug()),
        };
        let made = made.and_then(|bytes| {
            // Reading does not fail, because the relay has written the record.
            let record = Record::new(&bytes).map_err(|_| bug())?;
            answer.send_made(&record);
            Ok(())
        });
        match made {
            Err(refusal) if request.is_only => answer.refuse(&refusal),
            _ => relay.readers.push(Box::new(answer)),
        }
    });
}

/// Makes an invite, which the rates count like an event of the member.
async fn make(
    invites: &MemberInvites,
    rated: &RatedConnection,
    member: Key,
) -> Result<Vec<u8>, NostrRefusal> {
    rated.publishes(0)?;
    rated.publishes_kind(INVITE_KIND)?;
    rated.publishes_of(&member, INVITE_KIND)?;
    let made = invites.make(member).await;
    made.inspect_err(|_| rated.refund(&member, INVITE_KIND))
}
