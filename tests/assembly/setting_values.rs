//! Values that several settings are tried with: the least, the most and an odd value.

pub(crate) const WORD: [&str; 3] =
    ["\"\"", "\"many words, \\\"quotes\\\", <b> and\\nlines, ü\"", "\"x\""];
pub(crate) const URL: [&str; 3] = ["\"\"", "\"wss://relay.example/a/path\"", "\"relay.example\""];
pub(crate) const LISTEN: [&str; 3] =
    ["\"127.0.0.1:0\"", "\"0.0.0.0:0\"", "[\"127.0.0.2:0\", \"127.0.0.1:0\"]"];
pub(crate) const DIRECTORY: [&str; 3] =
    ["\"https://localhost:1/dir\"", "\"https://a.example/a/b?c=d\"", "\"http://a.example\""];
pub(crate) const CLIENT: [&str; 3] =
    ["\"\"", "\"https://client.example/?r={url}#{host}\"", "\"no link\""];
pub(crate) const LINK: [&str; 3] = ["\"\"", "\"https://relay.example/a.png?b=c\"", "\"no link\""];
pub(crate) const KEY: &str = "\"7e7e9c42a91bfef19fa929e5fda1b72e0ebc1a4c1141673e2794234d86addf4e\"";
pub(crate) const KEYS: &str = "[\"7e7e9c42a91bfef19fa929e5fda1b72e0ebc1a4c1141673e2794234d86addf4e\", \
                    \"npub10elfcs4fr0l0r8af98jlmgdh9c8tcxjvz9qkw038js35mp4dma8qzvjptg\"]";
pub(crate) const FEES: [&str; 3] = [
    "[]",
    "[{ for = \"admission\", amount = 9223372036854775807, unit = \"msats\" }]",
    "[{ for = \"love\", amount = 1, unit = \"sats\" }]",
];
pub(crate) const GROUPS: [&str; 3] = [
    "[]",
    "[{ name = \"all-of-them_in-32-small-letters\", addresses = [\"0.0.0.0/0\", \"::/0\"], \
     keys = [], times = 1000, events_per_address = [1000000000000, 1000000000000], \
     connections_per_address_max = 1000000 }, \
     { name = \"k\", kinds = [\"0-65535\"], events_per_key = [0, 0] }]",
    "[{ name = \"members\", keys = [\"npub1x\"], times = 0.001 }]",
];
pub(crate) const RULES: &str =
    "[{ kinds = [7], older_than = \"90d\" }, { not_kinds = [0, 3], older_than = \"5y\" }]";
pub(crate) const ORIGINS: [&str; 3] = ["[]", "[\"*\"]", "[\"http://localhost:*\"]"];
pub(crate) const SIGNED: [&str; 3] = [
    "[]",
    "[\"3:02c6047f9441ed7d6d3045406e95c07cd85c778e4b8cef3ca7abac09b95c709ee5\"]",
    "[\"3:04\"]",
];
pub(crate) const PEERS: [&str; 3] = [
    "[]",
    "[\"/ip4/127.0.0.1/tcp/1/p2p/16Uiu2HAmPLe7Mzm8TsYUubgCAW1aJoeFScxrLj8ppHFivPo97bUZ\"]",
    "[\"/ip4/127.0.0.1/tcp/1\"]",
];
pub(crate) const ENODES: &str = "[\"enode://79be667ef9dcbbac55a06295ce870b07029bfcdb2dce28d959f2815b16f81798483ada7726a3c4655da4fbfc0e1108a8fd17b448a68554199c47d08ffb10d4b8@127.0.0.1:1\"]";

/// Roles of managers.
pub(crate) const ROLES: [&str; 3] = [
    "[]",
    "[{ id = \"moderator\", methods = [\"banevent\"], keys = [] }]",
    "[{ id = \"moderator\", methods = [\"ban\"] }]",
];

/// Lists of domains of names.
pub(crate) const DOMAINS: [&str; 3] =
    ["[]", "[\"example.com\", \"*.example.org\"]", "[\"https://example.com\"]"];
