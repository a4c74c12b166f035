//! Who writes the generated events: keys that anyone can derive, so that a later run can sign in as
//! the reader of an inbox. They are the same for every seed.

use anyhow::Context as _;
use hark_codec::crypto::{Keys, sha256};

/// The key of the author with this rank; busy ones come first.
pub(crate) fn keys(rank: usize) -> anyhow::Result<Keys> {
    keys_of(&format!("author {rank}"))
}

/// The key of whoever has this name.
pub(crate) fn keys_of(name: &str) -> anyhow::Result<Keys> {
    let secret = sha256(format!("hark bench {name}").as_bytes());
    Keys::from_secret(secret).context("a hash that is no secret key, which does not happen")
}

/// The first `count` authors, made on all cores.
pub(crate) fn all(count: usize) -> anyhow::Result<Vec<Keys>> {
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
