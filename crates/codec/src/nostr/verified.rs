//! Events whose id and signature have been checked. Only the check can make a [`VerifiedEvent`].

use std::ops::Deref;

use super::event::Event;
use crate::crypto::{SignatureVerifier, VerifyError};

/// Why an event fails the check of its id and signature.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CheckError {
    /// The id is not the hash of the event.
    #[error("id is not the hash of the event")]
    Id,
    /// The signature is not valid.
    #[error(transparent)]
    Signature(#[from] VerifyError),
}

/// An event whose id is its hash and whose signature is valid.
///
/// ```
/// use hark_codec::crypto::{KeyPair, SignatureVerifier};
/// use hark_codec::nostr::{CheckError, Event, EventArena, EventDraft, VerifiedEvent};
///
/// let keys = KeyPair::from_secret([7; 32]).ok_or("no secret key")?;
/// let mut json = Vec::new();
/// EventDraft { created_at: 7, kind: 1, tags: &[], content: "one" }.sign(&keys, &mut json);
/// let (mut arena, mut verifier) = (EventArena::new(), SignatureVerifier::new(16));
/// let event = VerifiedEvent::check(Event::parse(&json, &mut arena)?, &mut verifier)?;
/// assert_eq!(event.pubkey(), keys.public());
///
/// let forged = String::from_utf8(json)?.replace("one", "two");
/// let event = Event::parse(forged.as_bytes(), &mut arena)?;
/// assert_eq!(VerifiedEvent::check(event, &mut verifier).err(), Some(CheckError::Id));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct VerifiedEvent<'a>(Event<'a>);

impl<'a> VerifiedEvent<'a> {
    /// Checks the id first and then the signature, because the id is cheaper to check.
    pub fn check(event: Event<'a>, verifier: &mut SignatureVerifier) -> Result<Self, CheckError> {
        if !event.has_valid_id() {
            return Err(CheckError::Id);
        }
        verifier.verify(event.id(), event.pubkey(), event.signature())?;
        Ok(Self(event))
    }

    /// The event.
    pub fn event(&self) -> Event<'a> {
        self.0
    }
}

impl<'a> Deref for VerifiedEvent<'a> {
    type Target = Event<'a>;

    fn deref(&self) -> &Event<'a> {
        &self.0
    }
}
