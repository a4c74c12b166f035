//! The state that requests share.

use std::sync::Arc;

use axum::extract::State;

use crate::waku::node::WakuNode;

/// The node, for the handler of a request.
pub(super) type WakuState = State<Arc<WakuNode>>;
