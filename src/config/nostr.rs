//! Builds the Nostr relay from the settings.

use std::sync::Arc;

use hark_archive::retention::RetentionPolicy;
use hark_networks::Network as _;
use hark_networks::nostr::Nostr;
use hark_plugin::SharedPlugin;
use hark_server::nostr::{RelayConfig, RelayService, SharedIdentity, Trust, policy};
use hark_server::{StoreLocation, shelf};

use super::doors::DoorFacts;
use super::network_setup::{NetworkService, NetworkSetup, ShelfConfig};
use super::values::Config;

/// The configuration and setup of the network.
pub(super) const SETUP: NetworkSetup = NetworkSetup {
    network: &Nostr,
    shelf: |config| ShelfConfig {
        retention: RetentionPolicy {
            tombstone_kinds: Nostr.tombstone_kinds().to_vec(),
            ..config.retention(&config.retention)
        },
        part_days: config.postgres.part_days,
        record_bytes_max: config.limits.events.event_bytes_max,
        texts: config.search.texts(&config.private_kinds),
    },
    is_served: |_| true,
    serve,
};

fn serve(config: &Config, shelf: shelf::ShelfOptions, at: &DoorFacts<'_>) -> NetworkService {
    let listen = if at.listen.is_empty() { &config.listen } else { at.listen };
    let mut relay = RelayConfig::new(listen.to_vec());
    relay.deflate_from_bytes = config.deflate_from_bytes;
    let identity = SharedIdentity::new(config.info.clone(), config.private_kinds.clone());
    relay.identity = identity.clone();
    relay.own_key = config.own_key_file();
    relay.threads = config.threads;
    relay.store_at = at.store_at;
    relay.texts = config.search.texts(&config.private_kinds);
    if let StoreLocation::Machine(connections) | StoreLocation::Elsewhere(connections) = at.store_at
        && relay.threads.read == 0
    {
        // Each connection to the database occupies one thread while it waits.
        relay.threads.read = connections;
    }
    warn(config);
    relay.policy = policy::shared(config.policy.clone());
    relay.trust = Trust::new(config.trust.clone());
    relay.plugin = SharedPlugin::new(config.plugin_options());
    relay.managers.store(Arc::new(config.managers.clone()));
    let (in_force, managers) = (relay.policy.clone(), Arc::clone(&relay.managers));
    let (plugin, trust) = (relay.plugin.clone(), Arc::clone(&relay.trust));
    relay.own_events.store(Arc::new(config.own_events));
    let own_events = Arc::clone(&relay.own_events);
    NetworkService {
        network: Box::new(RelayService { config: relay, shelf }),
        reload: Box::new(move |config| {
            warn(config);
            plugin.set(config.plugin_options());
            in_force.store(Arc::new(config.policy.clone()));
            managers.store(Arc::new(config.managers.clone()));
            // After the policy, whose denied keys are no followers.
            trust.set(config.trust.clone());
            own_events.store(Arc::new(config.own_events));
            // The last step, because it wakes the tasks that follow all of these settings.
            identity.set(config.info.clone(), config.private_kinds.clone());
        }),
    }
}

/// Logs a warning for each list that allows nothing, and for a plugin that cannot be run.
fn warn(config: &Config) {
    for line in config.advice() {
        tracing::warn!("{line}");
    }
}
