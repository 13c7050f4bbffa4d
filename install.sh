#!/bin/sh
# Builds flexvol, static, and hands over to it with all arguments: `./install.sh try`, `./install.sh
# install ...`.
# `./install.sh --prefix DIR` puts the program and its kit below DIR instead, with manual pages and
# completions of bash, zsh and fish. Cargo decides whether anything has to be built.
# `./install.sh dist` makes what a release consists of: bin/dist.
# FLEXVOL_BINARY=path takes that binary instead and builds nothing.
set -eu

die() {
    printf 'install.sh: %s\n' "$*" >&2
    exit 1
}

# Hands over to binary $1, which is $2, with the arguments after that.
use() {
    binary=$1
    printf 'flexvol: %s (%s)\n' "$binary" "$2" >&2
    shift 2
    case ${1-} in
    --prefix) [ $# = 2 ] || die "--prefix takes a directory and nothing after it"; put "$2" ;;
    --prefix=*) [ $# = 1 ] || die "nothing can follow --prefix=DIR"; put "${1#*=}" ;;
    *) exec "$binary" "$@" ;;
    esac
    exit
}

# Program $1 at $2. It is renamed into place: a running one is not overwritten.
place() {
    cp -- "$1" "$2.$$" && chmod 755 "$2.$$" && mv -- "$2.$$" "$2"
}

# The programs below directory $1, and what belongs to them.
put() {
    [ -n "$1" ] || die "--prefix takes a directory"
    man=$1/share/man/man1 bash=$1/share/bash-completion/completions zsh=$1/share/zsh/site-functions \
        fish=$1/share/fish/vendor_completions.d
    if ! { mkdir -p -- "$1/bin" "$man" "$bash" "$zsh" "$fish" &&
        place "$binary" "$1/bin/flexvol" &&
        { ! [ -x "$binary-kit" ] || place "$binary-kit" "$1/bin/flexvol-kit"; } &&
        { ! [ -x "${binary}d" ] || place "${binary}d" "$1/bin/flexvold"; } &&
        ln -sf flexvol "$1/bin/kubectl-flexvol" &&
        "$binary" man --output "$man" &&
        "$binary" completions bash >"$bash/flexvol" &&
        "$binary" completions zsh >"$zsh/_flexvol" &&
        "$binary" completions fish >"$fish/flexvol.fish"; }; then
        die "$1 cannot be written: name another --prefix, or use sudo"
    fi
    printf '%s\n' "$1/bin/flexvol" "$man/flexvol.1" "$bash/flexvol" "$zsh/_flexvol" "$fish/flexvol.fish"
}

# Whether the standard library of target $1 is there, or rustup can fetch it.
have_target() {
    library=$(rustc --print target-libdir --target "$1" 2>/dev/null) || return 1
    [ -d "$library" ] || rustup target add "$1" >/dev/null 2>&1
}

# Where this file lies, also through a symlink; the sources are beside it.
here=$(dirname -- "$(readlink -f -- "$0")")

if [ "${1-}" = dist ]; then
    shift
    exec "$here/bin/dist" "$@"
fi

if [ -n "${FLEXVOL_BINARY:-}" ]; then
    if ! [ -f "$FLEXVOL_BINARY" ] || ! [ -x "$FLEXVOL_BINARY" ]; then
        die "FLEXVOL_BINARY=$FLEXVOL_BINARY is not an executable file: correct or unset it"
    fi
    use "$(readlink -f -- "$FLEXVOL_BINARY")" "FLEXVOL_BINARY" "$@"
fi

[ -f "$here/Cargo.toml" ] ||
    die "no Cargo.toml beside $here/install.sh: run it where the sources are, or set FLEXVOL_BINARY"
command -v cargo >/dev/null ||
    die "cargo is not installed: get Rust from https://rustup.rs, or set FLEXVOL_BINARY to a built binary"
command -v cc >/dev/null || die "cc is not installed, which Rust links with: apt-get install gcc"
[ "$(uname -s)" = Linux ] || die "this is $(uname -s): FlexVolume drivers run on Linux nodes only"

# musl where it can be had, because it starts faster and holds nothing of the build machine's C
# library; else static glibc.
target=$(uname -m)-unknown-linux-musl
if ! have_target "$target"; then
    target=$(uname -m)-unknown-linux-gnu
    RUSTFLAGS="${RUSTFLAGS:-} -C target-feature=+crt-static"
    export RUSTFLAGS
fi

# A relative CARGO_TARGET_DIR is meant from where the caller stands.
out=$(readlink -m -- "${CARGO_TARGET_DIR:-$here/target}")
# From here, because cargo looks for .cargo/config.toml from where it stands, not where the sources
# are.
(cd -- "$here" && exec cargo build --quiet --locked --release --target "$target" --target-dir "$out") >&2 ||
    die "the build failed: see above"
use "$out/$target/release/flexvol" "static, $target" "$@"
