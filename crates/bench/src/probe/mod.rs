//! A client that checks a relay's answers: events of its own, questions, and a transcript of the
//! frames. `hark bench rules` and `hark bench answers` use this client.

pub(crate) mod client;
pub(crate) mod comparison;
pub(crate) mod end;
pub(crate) mod event;
pub(crate) mod info;
pub(crate) mod left;
pub(crate) mod refusal;
pub(crate) mod run;
