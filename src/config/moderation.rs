//! The shelf of the bans, the allows and the audit log. It has no settings.

use hark_archive::retention::RetentionPolicy;
use hark_networks::Network as _;
use hark_server::moderation::{
    ENTRY_KIND, ModerationNetwork, ModerationService, NAME_KIND, RECORDS_MAX, VALUE_KIND,
};

use super::network_setup::{NetworkService, NetworkSetup, ShelfConfig};

/// Maximum number of bytes of a record.
const RECORD_BYTES_MAX: usize = 64 << 10;

/// The configuration and setup of the network.
pub(super) const SETUP: NetworkSetup = NetworkSetup {
    network: &ModerationNetwork,
    shelf: |config| ShelfConfig {
        retention: config.retention(&RetentionPolicy {
            records_max: Some(RECORDS_MAX),
            spared_kinds: vec![ENTRY_KIND, VALUE_KIND, NAME_KIND],
            units_per_s: ModerationNetwork.nature().units_per_s,
            ..RetentionPolicy::default()
        }),
        part_days: 3_650,
        record_bytes_max: RECORD_BYTES_MAX,
        texts: None,
    },
    is_served: |_| true,
    serve: |_, shelf, _| NetworkService {
        network: Box::new(ModerationService { shelf }),
        reload: Box::new(|_| {}),
    },
};
