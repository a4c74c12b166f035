//! Reads the environment variables that set the length and the seed of a test run.

/// Returns whether this is a long run (`scripts/test --long`).
pub fn is_long() -> bool {
    std::env::var_os("HARK_LONG").is_some()
}

/// The seed in `HARK_SEED`.
pub fn seed() -> Option<u64> {
    let seed = std::env::var("HARK_SEED").ok()?;
    Some(seed.parse().expect("HARK_SEED is a number"))
}

/// Returns the seed in `HARK_SEED`. Without this variable, returns `usual`.
pub fn seed_or(usual: u64) -> u64 {
    seed().unwrap_or(usual)
}
