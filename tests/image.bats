#!/usr/bin/env bats
# shellcheck disable=SC2016 # what is in single quotes, an inner shell expands
# shellcheck disable=SC2030,SC2031 # each test is a shell of its own, and so is what it sets
# The image: built from the binary at hand, and its entry point run as a container runtime would:
# process 1, a root it cannot write to, no capability, and of the host nothing but three
# directories. Needs FLEXVOL_RELEASE, the static binary; tests/run sets it.

setup_file() {
  [ -n "${FLEXVOL_RELEASE:-}" ] && command -v buildah >/dev/null || return 0
  cd "$BATS_TEST_DIRNAME/.." || return
  mkdir "$BATS_FILE_TMPDIR"/{store,run}
  echo '{"default":[{"type":"insecureAcceptAnything"}]}' >"$BATS_FILE_TMPDIR/policy.json"
  # The context as a checkout with a binary has it: nothing else is sent, whatever is below target.
  mkdir -p "$BATS_FILE_TMPDIR/context/target/prebuilt/release"
  cp Dockerfile .dockerignore "$BATS_FILE_TMPDIR/context/"
  cp -- "$FLEXVOL_RELEASE" "$BATS_FILE_TMPDIR/context/target/prebuilt/release/flexvol"
  build bud --isolation chroot --signature-policy "$BATS_FILE_TMPDIR/policy.json" --build-arg SOURCE=prebuilt \
    --build-arg BINARY=target/prebuilt/release/flexvol -t flexvol "$BATS_FILE_TMPDIR/context" >&2
  container=$(build from --signature-policy "$BATS_FILE_TMPDIR/policy.json" --pull-never flexvol)
  image=$(build mount "$container")
  export container image
}

teardown_file() {
  [ -z "${container:-}" ] || build rm "$container" >/dev/null
}

setup() {
  [ -n "${FLEXVOL_RELEASE:-}" ] || skip "FLEXVOL_RELEASE is not set: use tests/run"
  command -v buildah >/dev/null || skip "buildah is not installed: use tests/run"
  root=$BATS_TEST_TMPDIR/root host=$BATS_TEST_TMPDIR/host
  plugins=/usr/libexec/kubernetes/kubelet-plugins/volume/exec
  driver=$host$plugins/example~tmpfs/tmpfs
  mkdir -p "$root/proc" "$root/run/flexvol" "$root/var/lib/flexvol" "$root$plugins" \
    "$host/run" "$host/state" "$host$plugins"
  cp -a -- "$image/." "$root/"
  mkdir "$root/dev" && touch "$root/dev/null"
  deployment=
}

teardown() {
  [ -z "$deployment" ] || { kill -KILL "$deployment" 2>/dev/null && wait "$deployment"; } || true
}

build() {
  buildah --storage-driver vfs --root "$BATS_FILE_TMPDIR/store" --runroot "$BATS_FILE_TMPDIR/run" "$@"
}

# Runs the image's entry point with arguments "$@" in the background.
start() {
  local entry
  mapfile -t entry < <(build inspect --format '{{range .OCIv1.Config.Entrypoint}}{{println .}}{{end}}' "$container")
  [ "${entry[0]}" = /flexvol ]
  unshare --mount --propagation private --pid --fork --kill-child bash -euc '
    root=$1 host=$2 plugins=$3
    shift 3
    mount --bind "$root" "$root"
    mount -t proc proc "$root/proc"
    mount --bind /dev/null "$root/dev/null"
    mount --bind "$host$plugins" "$root$plugins"
    mount --bind "$host/run" "$root/run/flexvol"
    mount --bind "$host/state" "$root/var/lib/flexvol"
    mount -o remount,bind,ro "$root"
    # chroot(2) needs one; the entry point does not.
    exec setpriv --no-new-privs --inh-caps=-all --bounding-set=-all,+sys_chroot \
      env -i "$(command -v chroot)" "$root" "$@"
  ' bash "$root" "$host" "$plugins" "${entry[@]:0:2}" "$@" >"$BATS_TEST_TMPDIR/log" 2>"$BATS_TEST_TMPDIR/errors" 3>&- &
  deployment=$!
}

# The process that the container calls 1.
first() {
  pgrep -P "$deployment"
}

eventually() {
  local end=$((SECONDS + 15))
  while [ "$SECONDS" -lt "$end" ]; do
    ! "$@" || return 0
    sleep 0.02
  done
  printf 'never: %s\n' "$*"
  cat "$BATS_TEST_TMPDIR/log" "$BATS_TEST_TMPDIR/errors"
  return 1
}

says() {
  jq -ne --arg event "$1" 'any(inputs; .event == $event)' "$BATS_TEST_TMPDIR/log" >/dev/null 2>&1
}

answers() {
  "$driver" init 2>/dev/null | jq -es 'length == 1 and .[0].status == "Success"' >/dev/null 2>&1
}

@test "the image is one static file and its entry point" {
  [ "$(cd "$image" && find . -mindepth 1)" = ./flexvol ]
  [ "$(stat -c '%a %u %g' "$image/flexvol")" = '755 0 0' ]
  cmp "$image/flexvol" "$FLEXVOL_RELEASE"
  [ "$(build inspect --format '{{.OCIv1.Config.Entrypoint}}' "$container")" = '[/flexvol deploy]' ]
  licenses='{{index .OCIv1.Config.Labels "org.opencontainers.image.licenses"}}'
  [ "$(build inspect --format "$licenses" "$container")" = Apache-2.0 ]
}

@test "it installs, keeps what it installed, tells of it, and leaves at once" {
  start example/tmpfs --plugin-dir "$plugins"
  eventually says ready
  answers
  [ "$(grep -w NSpid "/proc/$(first)/status" | awk '{print $NF}')" = 1 ]
  [ "$(stat -c %a "$host/run")" = 700 ]

  rm -r -- "${driver%/*}"
  eventually answers
  eventually test -e "$host/run/deploy/ready"

  echo '{"verb":"mount","outcome":"Success"}' >>"$host/run/log/drivers.jsonl"
  eventually grep -q '"verb":"mount"' "$BATS_TEST_TMPDIR/log"

  local kibibytes start=$EPOCHREALTIME
  # Of its own: the pages of the program are the page cache's.
  kibibytes=$(awk '/^RssAnon:/ { print $2 }' "/proc/$(first)/status")
  echo "$kibibytes KiB"
  [ "$kibibytes" -le 512 ]

  kill -TERM "$(first)"
  local status=0
  wait "$deployment" || status=$?
  deployment=
  [ "$status" -eq 0 ]
  awk -v from="$start" -v to="$EPOCHREALTIME" 'BEGIN { print to - from " s"; exit to - from > 1 }'
  says leaving
  [ ! -e "$host/run/deploy/ready" ]
  answers
}

@test "it needs no capability" {
  start example/tmpfs --plugin-dir "$plugins"
  eventually says ready
  # The one of chroot(2) and no other.
  [ "$(awk '/^CapPrm:/ { print $2 }' "/proc/$(first)/status")" = 0000000000040000 ]
  [ "$(awk '/^NoNewPrivs:/ { print $2 }' "/proc/$(first)/status")" = 1 ]
  [ "$(stat -c '%a %u %g' "$driver")" = '755 0 0' ]
}

@test "with --once it is an init container" {
  start --once example/tmpfs --plugin-dir "$plugins"
  wait "$deployment"
  deployment=
  answers
  [ ! -e "$host/run/deploy/ready" ]
}

@test "it takes over somebody else's driver without a capability" {
  mkdir "${driver%/*}"
  printf '#!/bin/sh\necho "{\\"status\\":\\"Success\\"}"\n' >"$driver"
  chmod 755 "$driver"
  start example/tmpfs --plugin-dir "$plugins"
  eventually says failed
  grep -q -- --take-over "$BATS_TEST_TMPDIR/log"
  kill -TERM "$(first)"
  wait "$deployment"
  start --take-over example/tmpfs --plugin-dir "$plugins"
  eventually says ready
  cmp "$driver" "$FLEXVOL_RELEASE"
  [ -n "$(find "$host/state/replaced/example~tmpfs" -name tmpfs -type f)" ]
}
