//! Presets: the settings of known networks under one name.
//!
//! The values are those of logos-delivery's `networks_config.nim` of August 2026.

use crate::config::setting_type::{SettingType, quoted, wanted};
use crate::config::value::TypedValue;

/// A network whose settings have a name.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NetworkPreset {
    pub(super) name: &'static str,
    pub(super) cluster: u16,
    pub(super) shards_in_cluster: u16,
    pub(super) message_bytes_max: usize,
    pub(super) entry_nodes: &'static [&'static str],
    pub(super) discovered_max: usize,
}

/// The settings that a preset sets. The configuration can override each value.
pub(in crate::config) const PRESET_KEYS: [&str; 6] = [
    "cluster",
    "shards_in_cluster",
    "shards",
    "message_bytes_max",
    "entry_nodes",
    "discovered_max",
];

/// All presets.
pub(super) const PRESETS: [NetworkPreset; 4] = [
    NetworkPreset {
        name: "status.prod",
        cluster: 16,
        shards_in_cluster: 1,
        message_bytes_max: 1 << 20,
        discovered_max: 12,
        entry_nodes: &[
            "enrtree://AMOJVZX4V6EXP7NTJPMAYJYST2QP6AJXYW76IU6VGJS7UVSNDYZG4@boot.prod.status.nodes.status.im",
            "/dns4/boot-01.do-ams3.status.prod.status.im/tcp/30303/p2p/16Uiu2HAmAR24Mbb6VuzoyUiGx42UenDkshENVDj4qnmmbabLvo31",
            "/dns4/boot-01.gc-us-central1-a.status.prod.status.im/tcp/30303/p2p/16Uiu2HAm8mUZ18tBWPXDQsaF7PbCKYA35z7WB2xNZH2EVq1qS8LJ",
            "/dns4/boot-01.ac-cn-hongkong-c.status.prod.status.im/tcp/30303/p2p/16Uiu2HAmGwcE8v7gmJNEWFtZtojYpPMTHy2jBLL6xRk33qgDxFWX",
        ],
    },
    NetworkPreset {
        name: "logos.test",
        cluster: 2,
        shards_in_cluster: 8,
        message_bytes_max: 150 << 10,
        discovered_max: 12,
        entry_nodes: &[
            "/dns4/node-01.do-ams3.logos.test.status.im/tcp/30303/p2p/16Uiu2HAmQ9X2xDfPG3uL77V9piYDhjq14JhKCtcmNYsTMKNqrKCj",
            "/dns4/node-02.do-ams3.logos.test.status.im/tcp/30303/p2p/16Uiu2HAmB8NYprrfQrgWVzsJtYWkfjsXbmJEGNMG6othXsQ53BwG",
            "/dns4/node-01.gc-us-central1-a.logos.test.status.im/tcp/30303/p2p/16Uiu2HAmF8WtwGPmeGHgYAX2277jHgy5cW9F7zsB8EqUjBZQAZQ3",
            "/dns4/node-02.gc-us-central1-a.logos.test.status.im/tcp/30303/p2p/16Uiu2HAmUuXhUW9bdJpzN1kfDziFiUZo4bszTk66cvr7uuyCHXR7",
            "/dns4/node-01.ac-cn-hongkong-c.logos.test.status.im/tcp/30303/p2p/16Uiu2HAmL3oU95jh1BZHozn3uNhx8HEneirgr8M1jEAapzXGDqRF",
            "/dns4/node-02.ac-cn-hongkong-c.logos.test.status.im/tcp/30303/p2p/16Uiu2HAm28CoBZjpyxsanC8tQpbvZ7bZJnVYuB1EgFzb571qpWsV",
        ],
    },
    NetworkPreset {
        name: "logos.dev",
        cluster: 3,
        shards_in_cluster: 8,
        message_bytes_max: 150 << 10,
        discovered_max: 12,
        entry_nodes: &[
            "/dns4/delivery-01.do-ams3.logos.dev.status.im/tcp/30303/p2p/16Uiu2HAmTUbnxLGT9JvV6mu9oPyDjqHK4Phs1VDJNUgESgNSkuby",
            "/dns4/delivery-02.do-ams3.logos.dev.status.im/tcp/30303/p2p/16Uiu2HAmMK7PYygBtKUQ8EHp7EfaD3bCEsJrkFooK8RQ2PVpJprH",
            "/dns4/delivery-01.gc-us-central1-a.logos.dev.status.im/tcp/30303/p2p/16Uiu2HAm4S1JYkuzDKLKQvwgAhZKs9otxXqt8SCGtB4hoJP1S397",
            "/dns4/delivery-02.gc-us-central1-a.logos.dev.status.im/tcp/30303/p2p/16Uiu2HAm8Y9kgBNtjxvCnf1X6gnZJW5EGE4UwwCL3CCm55TwqBiH",
            "/dns4/delivery-01.ac-cn-hongkong-c.logos.dev.status.im/tcp/30303/p2p/16Uiu2HAm8YokiNun9BkeA1ZRmhLbtNUvcwRr64F69tYj9fkGyuEP",
            "/dns4/delivery-02.ac-cn-hongkong-c.logos.dev.status.im/tcp/30303/p2p/16Uiu2HAkvwhGHKNry6LACrB8TmEFoCJKEX29XR5dDUzk3UT3UNSE",
        ],
    },
    NetworkPreset {
        name: "twn",
        cluster: 1,
        shards_in_cluster: 8,
        message_bytes_max: 150 << 10,
        // Strangers are not discovered: they could send messages with invalid proofs, since Hark
        // does not verify proofs.
        discovered_max: 0,
        // The nodes with which nwaku begins to discover others.
        entry_nodes: &[
            "enr:-QESuED0qW1BCmF-oH_ARGPr97Nv767bl_43uoy70vrbah3EaCAdK3Q0iRQ6wkSTTpdrg_dU_NC2ydO8leSlRpBX4pxiAYJpZIJ2NIJpcIRA4VDAim11bHRpYWRkcnO4XAArNiZub2RlLTAxLmRvLWFtczMud2FrdS5zYW5kYm94LnN0YXR1cy5pbQZ2XwAtNiZub2RlLTAxLmRvLWFtczMud2FrdS5zYW5kYm94LnN0YXR1cy5pbQYfQN4DgnJzkwABCAAAAAEAAgADAAQABQAGAAeJc2VjcDI1NmsxoQOTd-h5owwj-cx7xrmbvQKU8CV3Fomfdvcv1MBc-67T5oN0Y3CCdl-DdWRwgiMohXdha3UyDw",
            "enr:-QEkuED9X80QF_jcN9gA2ZRhhmwVEeJnsg_Hyg7IFCTYnZD0BDI7a8HArE61NhJZFwygpHCWkgwSt2vqiABXkBxzIqZBAYJpZIJ2NIJpcIQiQlleim11bHRpYWRkcnO4bgA0Ni9ub2RlLTAxLmdjLXVzLWNlbnRyYWwxLWEud2FrdS5zYW5kYm94LnN0YXR1cy5pbQZ2XwA2Ni9ub2RlLTAxLmdjLXVzLWNlbnRyYWwxLWEud2FrdS5zYW5kYm94LnN0YXR1cy5pbQYfQN4DgnJzkwABCAAAAAEAAgADAAQABQAGAAeJc2VjcDI1NmsxoQPFAS8zz2cg1QQhxMaK8CzkGQ5wdHvPJcrgLzJGOiHpwYN0Y3CCdl-DdWRwgiMohXdha3UyDw",
            "enr:-QEkuEBfEzJm_kigJ2HoSS_RBFJYhKHocGdkhhBr6jSUAWjLdFPp6Pj1l4yiTQp7TGHyu1kC6FyaU573VN8klLsEm-XuAYJpZIJ2NIJpcIQI2SVcim11bHRpYWRkcnO4bgA0Ni9ub2RlLTAxLmFjLWNuLWhvbmdrb25nLWMud2FrdS5zYW5kYm94LnN0YXR1cy5pbQZ2XwA2Ni9ub2RlLTAxLmFjLWNuLWhvbmdrb25nLWMud2FrdS5zYW5kYm94LnN0YXR1cy5pbQYfQN4DgnJzkwABCAAAAAEAAgADAAQABQAGAAeJc2VjcDI1NmsxoQOwsS69tgD7u1K50r5-qG5hweuTwa0W26aYPnvivpNlrYN0Y3CCdl-DdWRwgiMohXdha3UyDw",
        ],
    },
];

impl NetworkPreset {
    /// Returns the preset with this name.
    fn named(name: &str) -> Option<&'static Self> {
        PRESETS.iter().find(|preset| preset.name == name)
    }

    /// Returns the name of the preset.
    pub(crate) fn name(&self) -> &'static str {
        self.name
    }
}

/// The setting that selects a preset.
pub(in crate::config) const PRESET: (&str, &str) = ("waku", "preset");

/// Empty text stands for no preset.
impl SettingType for Option<&'static NetworkPreset> {
    fn read(value: &TypedValue) -> Result<Self, String> {
        let name = String::read(value)?;
        if name.is_empty() {
            return Ok(None);
        }
        let names: Vec<String> = PRESETS.iter().map(|preset| quoted(preset.name)).collect();
        let what = format!("one of {}, or \"\" for none", names.join(", "));
        NetworkPreset::named(&name).map_or_else(|| wanted(&what, value), |preset| Ok(Some(preset)))
    }

    fn show(&self) -> String {
        quoted(self.map_or("", |preset| preset.name))
    }
}
