# Commands of those who work on Hark. `just --list` shows them.

# What there is.
default:
    @just --list

# The tests that need neither node, nor a browser, nor a database.
test-quick:
    cargo test --locked --workspace --lib
    cargo test --locked --workspace --test main --test program --test relay -- --skip admin:: --skip bench:: --skip fleet:: --skip moving:: --skip nostr:: --skip page:: --skip proxy:: --skip public:: --skip tables_are --skip waku::bench --skip waku::clients --skip waku::history

# Everything that is tested; installs what it needs.
test:
    scripts/test

# Format, lints and documents, as CI checks them.
check:
    cargo fmt --all --check
    cargo clippy --locked --workspace --all-targets -- -D warnings
    RUSTDOCFLAGS="-D warnings" cargo doc --locked --workspace --no-deps --lib --examples

# The pictures of the pages in docs/images.
pictures:
    cargo test --locked --workspace --test main -- --ignored admin::pictures

# A relay on ws://127.0.0.1:7777.
serve *ARGS:
    cargo run --release -- serve {{ARGS}}

# Each fuzz target for so many seconds.
fuzz SECONDS="60":
    scripts/fuzz all {{SECONDS}}

# Instructions of the codec, the planner and the live index against their reference.
instructions:
    cargo bench --locked -p hark-bench --bench instructions
