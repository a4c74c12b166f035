//! The state of a relay that its sessions and threads share.

use std::sync::Arc;

use arc_swap::Guard;
use hark_archive::TextSource;
use hark_archive::live::LiveIndex;
use hark_archive::query::HiddenRecords;
use hark_plugin::PluginPool;

use super::audience::Audience;
use super::auth::AuthState;
use super::identity::SharedIdentity;
use super::intake::Intake;
use super::manage::Management;
use super::metrics::RelayMetrics;
use super::names::NameChecks;
use super::outboxes::Outboxes;
use super::own::MemberInvites;
use super::policy::SharedPolicy;
use super::readers::Readers;
use super::rule_mode::RuleMode;
use super::trust::Trust;
use crate::budget::Budget;
use crate::connections::Connections;
use crate::moderation::Moderation;
use crate::rate::RateLimiter;
use crate::service::SlowLog;
use crate::settings::{Settings, SharedSettings};
use crate::shelf::Shelf;
use crate::websocket::DeflateOptions;

/// State shared by all sessions.
pub(crate) struct Relay {
    pub(crate) shelf: Arc<Shelf>,
    pub(crate) live: Arc<LiveIndex>,
    pub(crate) readers: Arc<Readers>,
    pub(crate) auth: Arc<AuthState>,
    /// The sessions, with their subscriptions.
    pub(crate) audience: Arc<Audience>,
    pub(crate) intake: Arc<Intake>,
    pub(crate) settings: SharedSettings,
    pub(crate) policy: SharedPolicy,
    /// The bans and allows that are kept in the archive.
    pub(crate) moderation: Moderation,
    /// The records that the bans hide from readers.
    pub(crate) hidden: HiddenRecords,
    pub(crate) trust: Arc<Trust>,
    pub(crate) plugin: Arc<PluginPool>,
    pub(crate) names: Arc<NameChecks>,
    pub(crate) rates: RateLimiter,
    pub(crate) metrics: Arc<RelayMetrics>,
    pub(crate) slow: SlowLog,
    pub(crate) identity: SharedIdentity,
    pub(crate) management: Management,
    /// The part that makes invites for members, if the relay has a key of its own.
    pub(crate) invites: Option<MemberInvites>,
    pub(crate) connections: Arc<Connections>,
    pub(crate) outboxes: Arc<Outboxes>,
    /// The memory budget for questions.
    pub(crate) questions: Arc<Budget>,
    /// The memory budget for the sets of comparisons.
    pub(crate) comparisons: Arc<Budget>,
    /// The memory budget for messages that are incomplete, or wait for a permit of the intake.
    pub(crate) inbound: Arc<Budget>,
    pub(crate) deflate: DeflateOptions,
    /// The texts that are searched. `None`: searches are refused.
    pub(crate) texts: Option<Arc<dyn TextSource>>,
    /// Whether rate limits are off.
    pub(crate) unlimited: bool,
}

impl Relay {
    /// The settings in force now.
    pub(crate) fn settings(&self) -> Guard<Arc<Settings>> {
        self.settings.load()
    }

    /// Whether other rules than the policy may refuse an event: trusted keys, or a plugin.
    pub(crate) fn has_further_rules(&self) -> bool {
        self.trust.mode() == RuleMode::Require || self.plugin.options().is_on()
    }
}
