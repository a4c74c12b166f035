//! The authors of the generated events: keys that anyone can derive, so that a later run can
//! authenticate as the owner of an inbox. The keys are the same for every seed.

use anyhow::Context as _;
use hark_codec::crypto::{KeyPair, sha256};

/// Derives the keys of the author with this rank. Busy authors have low ranks.
pub(crate) fn keys(rank: usize) -> anyhow::Result<KeyPair> {
    keys_of(&format!("author {rank}"))
}

/// Derives the keys of the person with this name.
pub(crate) fn keys_of(name: &str) -> anyhow::Result<KeyPair> {
    let secret = sha256(format!("hark bench {name}").as_bytes());
    KeyPair::from_secret(secret).context("a hash that is no secret key, which does not happen")
}

/// Derives the keys of the first `count` authors, on all cores.
pub(crate) fn all(count: usize) -> anyhow::Result<Vec<KeyPair>> {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let share = count.div_ceil(cores).max(1);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..count)
            .step_by(share)
            .map(|from| {
                scope.spawn(move || {
                    (from..count.min(from + share)).map(keys).collect::<anyhow::Result<Vec<_>>>()
                })
            })
            .collect();
        let mut all = Vec::with_capacity(count);
        for thread in threads {
            let part = thread.join().map_err(|_| anyhow::anyhow!("deriving keys has panicked"))?;
            all.extend(part?);
        }
        Ok(all)
    })
}
