# shellcheck shell=bash
# Functions that the scripts of this folder share: messages, and the installation of missing tools. Scripts source this
# file.

say() {
    printf '\n== %s\n' "$*"
}

fail() {
    printf '\n== failed: %s\n' "$*" >&2
    exit 1
}

# as_root COMMAND...
as_root() {
    if [ "$(id -u)" = 0 ]; then
        "$@"
    elif command -v sudo >/dev/null; then
        sudo "$@"
    else
        fail "this command needs root, and sudo is missing: $*"
    fi
}

# need_package COMMAND PACKAGE WHY: installs a package of the system, unless COMMAND exists
need_package() {
    local command=$1 package=$2 why=$3
    if command -v "$command" >/dev/null; then
        return
    fi
    say "installing $package with apt-get, since '$command' is missing: $why"
    if ! command -v apt-get >/dev/null; then
        fail "this machine has no apt-get; install '$package' by other means"
    fi
    as_root apt-get update -qq
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$package"
}

# need_postgres: installs PostgreSQL's server and psql, unless they are where crates/testkit/src/postgres.rs searches
need_postgres() {
    local folder version newest=0
    local folders=(/usr/lib/postgresql/*/bin)
    IFS=: read -ra path <<<"$PATH"
    for folder in "${path[@]}" "${folders[@]}"; do
        [ -x "$folder/postgres" ] && [ -x "$folder/initdb" ] && [ -x "$folder/psql" ] || continue
        version=$("$folder/postgres" --version | awk '{ print int($3) }')
        if [ "$version" -gt "$newest" ]; then newest=$version; fi
    done
    if [ "$newest" -ge 15 ]; then
        return
    fi
    say "installing postgresql with apt-get, since no PostgreSQL of version 15 or newer was found: tests start their own servers with it, on free loopback ports"
    if ! command -v apt-get >/dev/null; then
        fail "this machine has no apt-get; install PostgreSQL 15 or newer by other means"
    fi
    as_root apt-get update -qq
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends postgresql
}

# need_cargo_tool NAME VERSION WHY: installs exactly this version of a program from crates.io
need_cargo_tool() {
    local name=$1 version=$2 why=$3
    local directory="${CARGO_HOME:-$HOME/.cargo}/bin"
    PATH="$directory:$PATH"
    if [ "$("$name" --version 2>/dev/null | awk '{ print $2 }')" = "$version" ]; then
        return
    fi
    say "installing $name $version with cargo install: $why"
    # The tool is built without debug information and with few optimisations, because this takes less time.
    CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_OPT_LEVEL=1 CARGO_PROFILE_RELEASE_DEBUG=0 \
        CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 cargo install --quiet --locked --force "$name@$version"
}

need_compiler() {
    need_package cc build-essential "libsecp256k1 and zstd are C"
}

need_nightly() {
    if ! cargo +nightly --version >/dev/null 2>&1; then
        say "installing a nightly compiler with rustup: the fuzzer needs its instrumentation"
        rustup toolchain install nightly --profile minimal
    fi
}

# need_rust_component NAME
need_rust_component() {
    if ! cargo "${1/rustfmt/fmt}" --version >/dev/null 2>&1; then
        say "installing $1 with rustup"
        rustup component add "$1"
    fi
}
