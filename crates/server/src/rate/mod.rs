//! Rate limits: at most N per minute, and at most M at once after a pause (a token bucket).

mod buckets;
mod client;
mod groups;
mod limiter;
mod limits;
mod name;
mod trusted;

pub(crate) use buckets::{RateBuckets, RateSource, RateSubject};
pub(crate) use client::RatedConnection;
pub(crate) use groups::{ClientRates, GroupMembership};
pub use groups::{ListedClients, RateFactor, RateGroup, RateGroups};
pub(crate) use limiter::{RateExceeded, RateLimiter};
pub use limits::{Rate, RateLimits};
pub use name::RateName;
pub use trusted::TrustedKeys;
