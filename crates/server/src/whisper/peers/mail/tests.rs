//! Requests in envelopes, as clients send them.

use super::*;
