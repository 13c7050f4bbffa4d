#!/usr/bin/env bats
# shellcheck disable=SC2154 # bats sets stderr
bats_require_minimum_version 1.5.0
# install.sh: builds or takes the binary, and hands over. The build itself is cargo's; here it finds
# everything built.

setup() {
  cd "$BATS_TEST_DIRNAME/.." || return
  here=$PWD
  # A stand-in that shows what it was called with.
  fake=$BATS_TEST_TMPDIR/fake
  printf '#!/bin/sh\nprintf "[%%s]" "$@"\n' >"$fake"
  chmod +x "$fake"
}

@test "takes the binary it is told to, and says so in one line" {
  FLEXVOL_BINARY=$fake run --separate-stderr ./install.sh try --once 'two words' ''
  [ "$status" -eq 0 ]
  [ "$output" = '[try][--once][two words][]' ]
  [ "$stderr" = "flexvol: $fake (FLEXVOL_BINARY)" ]
}

@test "hands over the exit status" {
  printf '#!/bin/sh\nexit 7\n' >"$fake"
  FLEXVOL_BINARY=$fake run ./install.sh
  [ "$status" -eq 7 ]
}

@test "a relative FLEXVOL_BINARY is meant from here" {
  cd "$BATS_TEST_TMPDIR"
  FLEXVOL_BINARY=fake run "$here/install.sh" x
  [ "$status" -eq 0 ]
  [[ $output == *'[x]' ]]
}

@test "refuses a binary that is none" {
  for wrong in "$BATS_TEST_TMPDIR/none" "$BATS_TEST_TMPDIR" "$here/Cargo.toml"; do
    FLEXVOL_BINARY=$wrong run ./install.sh
    [ "$status" -eq 1 ]
    [[ $output == *"FLEXVOL_BINARY=$wrong is not an executable file"* ]]
  done
}

@test "says what is missing" {
  tools=$BATS_TEST_TMPDIR/tools
  mkdir "$tools"
  ln -s "$(command -v dirname)" "$(command -v readlink)" "$(command -v uname)" "$tools"
  run env PATH="$tools" /bin/sh ./install.sh
  [ "$status" -eq 1 ]
  [[ $output == 'install.sh: cargo is not installed: '* ]]
  ln -s /bin/true "$tools/cargo"
  run env PATH="$tools" /bin/sh ./install.sh
  [[ $output == 'install.sh: cc is not installed'* ]]
}

@test "says where the sources are not" {
  cp install.sh "$BATS_TEST_TMPDIR"
  run "$BATS_TEST_TMPDIR/install.sh"
  [ "$status" -eq 1 ]
  [[ $output == *"no Cargo.toml beside $BATS_TEST_TMPDIR/install.sh"* ]]
}

@test "builds, from any directory, through a symlink with spaces in its path" {
  [[ ${FLEXVOL_RELEASE:-} == */release/flexvol ]] || skip "no release is built: tests/run release bats"
  mkdir "$BATS_TEST_TMPDIR/a b"
  ln -s "$here/install.sh" "$BATS_TEST_TMPDIR/a b/get flexvol"
  target=${CARGO_TARGET_DIR:-target}
  CARGO_TARGET_DIR=$(readlink -m -- "$target")
  export CARGO_TARGET_DIR
  before=$(sha256sum <"$FLEXVOL_RELEASE")
  cd "$BATS_TEST_TMPDIR"
  run --separate-stderr "$BATS_TEST_TMPDIR/a b/get flexvol" --version
  # The same as from the sources' own directory, whose .cargo/config.toml says how to link.
  [ "$(sha256sum <"$FLEXVOL_RELEASE")" = "$before" ]
  [ "$status" -eq 0 ]
  [[ $output == flexvol* ]]
  library=$([[ $FLEXVOL_RELEASE == *musl* ]] && echo musl || echo gnu)
  [ "$stderr" = "flexvol: $FLEXVOL_RELEASE (static, $(uname -m)-unknown-linux-$library)" ]
}

@test "shows the overview without arguments" {
  [ -n "${FLEXVOL_RELEASE:-}" ] || skip "FLEXVOL_RELEASE is not set: use tests/run"
  FLEXVOL_BINARY=$FLEXVOL_RELEASE run ./install.sh
  [[ $output == *"flexvol try"* && $output == *"flexvol drivers"* ]]
}

@test "a failed build says so" {
  sources=$BATS_TEST_TMPDIR/sources
  mkdir "$sources"
  cp install.sh "$sources"
  printf '[package]\nname = "broken"\nversion = "0.0.0"\nedition = "2024"\n' >"$sources/Cargo.toml"
  run env -u CARGO_TARGET_DIR "$sources/install.sh"
  [ "$status" -eq 1 ]
  [[ $output == *'install.sh: the build failed: see above' ]]
}

@test "puts the program, its manual pages and completions below a prefix" {
  [ -n "${FLEXVOL_RELEASE:-}" ] || skip "FLEXVOL_RELEASE is not set: use tests/run"
  prefix=$BATS_TEST_TMPDIR/prefix
  for _ in 1 2; do # a second time over the first
    FLEXVOL_BINARY=$FLEXVOL_RELEASE run --separate-stderr ./install.sh --prefix "$prefix"
    [ "$status" -eq 0 ]
    [ "${lines[0]}" = "$prefix/bin/flexvol" ]
  done
  cmp "$prefix/bin/flexvol" "$FLEXVOL_RELEASE"
  cmp "$prefix/bin/flexvol-kit" "$FLEXVOL_RELEASE-kit"
  cmp "$prefix/bin/flexvold" "${FLEXVOL_RELEASE}d"
  [ "$(ls -A "$prefix/bin")" = $'flexvol\nflexvol-kit\nflexvold\nkubectl-flexvol' ]
  [ "$("$prefix/bin/kubectl-flexvol" --version)" = "$("$prefix/bin/flexvol" --version)" ]
  for page in flexvol flexvol-install flexvol-pod-up; do
    grep -q '^\.TH ' "$prefix/share/man/man1/$page.1"
  done
  # What packages take from such a tree, and bin/dist puts there what is missing here.
  places=$(grep -o 'target/stage/this/[^*"]*' Cargo.toml | cut -d / -f 4- | sort -u | grep -v share/doc/)
  [ "$(wc -l <<<"$places")" -eq 5 ]
  for place in $places; do [ -n "$(ls -A "$prefix/$place")" ]; done
  bash -n "$prefix/share/bash-completion/completions/flexvol"
  grep -q '^#compdef flexvol' "$prefix/share/zsh/site-functions/_flexvol"
  grep -q '^complete -c flexvol' "$prefix/share/fish/vendor_completions.d/flexvol.fish"
}

@test "a prefix that cannot be written is said" {
  FLEXVOL_BINARY=$fake run ./install.sh --prefix /proc/none
  [ "$status" -eq 1 ]
  [[ $output == *'install.sh: /proc/none cannot be written: name another --prefix, or use sudo'* ]]
  FLEXVOL_BINARY=$fake run ./install.sh --prefix
  [[ $output == *'--prefix takes a directory and nothing after it'* ]]
}
