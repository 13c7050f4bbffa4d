#!/usr/bin/env bats
# shellcheck disable=SC2016 # what is in single quotes, an inner shell expands
# What a shell sees of a driver, and so what kubelet sees: arguments in, one JSON object out, exit
# 0, whatever comes. Needs FLEXVOL_RELEASE, the static binary; tests/run sets it.

setup() {
  [ -n "${FLEXVOL_RELEASE:-}" ] || skip "FLEXVOL_RELEASE is not set: use tests/run"
  plugins=$BATS_TEST_TMPDIR/plugins
  driver=$(place 'example~tmpfs/tmpfs')
  target=$BATS_TEST_TMPDIR/pods/1/volumes/example~tmpfs/v
}

# Copies the binary to where kubelet looks for driver $1, and says where that is.
place() {
  mkdir -p "$plugins/${1%/*}"
  cp -- "$FLEXVOL_RELEASE" "$plugins/$1"
  printf '%s\n' "$plugins/$1"
}

# Calls "$@" as kubelet does: no environment, standard input /dev/null, both outputs in one pipe.
# Leaves what came in $output.
call() {
  run timeout 20 env -i "$@" </dev/null
  [ "$status" -eq 0 ]
  one_object
}

one_object() {
  jq -es 'length == 1 and (.[0] | type == "object" and has("status"))' <<<"$output" >/dev/null || {
    printf 'not one object with a status: %q\n' "$output"
    return 1
  }
}

# The reply has status $1.
replied() {
  jq -e --arg status "$1" '.status == $status' <<<"$output" >/dev/null || {
    printf 'wanted %s, got %s\n' "$1" "$output"
    return 1
  }
}

five_booleans() {
  jq -e '.status == "Success" and (.capabilities
      | [.attach, .selinuxRelabel, .supportsMetrics, .fsGroup, .requiresFSResize]
         | map(type == "boolean") | all)' <<<"$output" >/dev/null || { printf '%s\n' "$output"; return 1; }
}

@test "init names all five capabilities" {
  call "$driver" init
  five_booleans
  [ "$(jq .capabilities.attach <<<"$output")" = false ]
}

@test "init writes one line, to standard output" {
  run bash -c 'env -i "$1" init 2>&1 >/dev/null | wc -c' - "$driver"
  [ "$output" = 0 ]
  run bash -c 'env -i "$1" init | wc -l' - "$driver"
  [ "$output" = 1 ]
}

@test "init leaves the driver's directory alone" {
  before=$(ls -laR --time-style=full-iso "$plugins")
  call "$driver" init
  [ "$before" = "$(ls -laR --time-style=full-iso "$plugins")" ]
}

@test "every driver answers init under its own name" {
  for name in tmpfs bind image exec; do
    call "$(place "example~$name/$name")" init
    five_booleans
  done
}

@test "a side file says what another name is" {
  web=$(place 'example~web/web')
  printf '{"driver":"tmpfs"}' >"$plugins/example~web/.flexvol.json"
  call "$web" init
  five_booleans
  [ "$output" = "$(env -i "$driver" init)" ]
}

@test "a broken side file is named, not obeyed" {
  printf '{"driver":' >"$plugins/example~tmpfs/.flexvol.json"
  call "$driver" mount "$target" '{}'
  replied Failure
  [[ $output == *.flexvol.json* ]]
}

@test "unknown verbs are not supported" {
  for verb in waitfordetach getdevicemountpath frobnicate INIT Mount --mount; do
    call "$driver" "$verb" a b c
    replied 'Not supported'
  done
}

@test "verbs the driver lacks are not supported" {
  for verb in attach detach waitforattach isattached mountdevice unmountdevice getvolumename expandvolume; do
    call "$driver" "$verb" '{}' node
    replied 'Not supported'
  done
}

@test "a known verb with wrong arguments fails, and is never called unsupported" {
  call "$driver" mount
  replied Failure
  call "$driver" mount ''
  replied Failure
  call "$driver" mount '' '{'
  replied Failure
  call "$driver" mount "$target" '{' more
  replied Failure
  call "$driver" unmount
  replied Failure
  call "$driver" unmount ''
  replied Failure
  call "$driver" unmount relative/path
  replied Failure
}

@test "options that are not an object of strings fail" {
  for options in '' ' ' null '[]' '"x"' '{"a":1}' '{"a":null}' '{"a":{}}' '{} {}' "{'a':'b'}" '{"a":"b",}' \
    $'\xef\xbb\xbf{}'; do
    call "$driver" mount "$target" "$options"
    replied Failure
  done
  [ ! -e "$target" ]
}

@test "four kibibytes of garbage fail" {
  garbage=$(LC_ALL=C awk 'BEGIN { srand(7); while (i++ < 4096) printf "%c", 1 + int(255 * rand()) }')
  call "$driver" mount "$target" "$garbage"
  replied Failure
  call "$driver" mount "$garbage" '{}'
  replied Failure
  call "$driver" unmount "$garbage"
  replied Failure
  call "$driver" "$garbage"
  replied 'Not supported'
}

@test "an option nobody knows is named, and a close one offered" {
  call "$driver" mount "$target" '{"sise":"1Mi"}'
  replied Failure
  [[ $output == *sise* && $output == *'size'* ]]
}

@test "a failure shows no secret" {
  secret=aHVudGVyMi1odW50ZXIy
  call "$driver" mount "$target" '{"kubernetes.io/secret/password":"'$secret'","sise":"1Mi"}'
  replied Failure
  [[ $output != *"$secret"* && $output != *hunter2* ]]
  call "$driver" mount "$target" '{"kubernetes.io/secret/password":"'$secret'"'
  replied Failure
  [[ $output != *"$secret"* ]]
}

@test "closed descriptors do not kill it" {
  run bash -c 'env -i "$1" init <&-' - "$driver"
  [ "$status" -eq 0 ]
  five_booleans
  run bash -c 'env -i "$1" init 2>&-' - "$driver"
  [ "$status" -eq 0 ]
  five_booleans
  # Nobody can be told; it must end all the same, and soon.
  run timeout 10 bash -c 'env -i "$1" init >&-' - "$driver"
  [ "$status" -ne 124 ]
  run timeout 10 bash -c 'env -i "$1" mount "" "{" <&- >&- 2>&-' - "$driver"
  [ "$status" -ne 124 ]
}

@test "a reader that went away does not hang or kill it loudly" {
  run timeout 10 bash -c 'env -i "$1" init | true; echo "${PIPESTATUS[0]}"' - "$driver"
  [ "$status" -eq 0 ]
}

@test "a deleted working directory does not matter" {
  mkdir "$BATS_TEST_TMPDIR/gone"
  cd "$BATS_TEST_TMPDIR/gone"
  rmdir "$BATS_TEST_TMPDIR/gone"
  call "$driver" init
  five_booleans
  cd /
}

@test "an empty root without /proc and /dev is enough for init" {
  root=$BATS_TEST_TMPDIR/root
  mkdir -p "$root/plugins/example~tmpfs"
  cp -- "$FLEXVOL_RELEASE" "$root/plugins/example~tmpfs/tmpfs"
  call "$(command -v chroot)" "$root" '/plugins/example~tmpfs/tmpfs' init
  five_booleans
  [ "$(find "$root" | wc -l)" -eq 4 ]
}

@test "a read-only root is enough for init" {
  run unshare --mount bash -c 'mount --bind "$1" "$1" && mount -o remount,bind,ro "$1" &&
    env -i "$1/example~tmpfs/tmpfs" init' - "$plugins"
  [ "$status" -eq 0 ]
  five_booleans
}

@test "another user than root gets an answer too" {
  root=$BATS_TEST_TMPDIR/root
  mkdir -p "$root/plugins/example~tmpfs"
  cp -- "$FLEXVOL_RELEASE" "$root/plugins/example~tmpfs/tmpfs"
  call "$(command -v chroot)" --userspec=65534:65534 "$root" '/plugins/example~tmpfs/tmpfs' init
  five_booleans
}

@test "mount and unmount, twice each, as kubelet retries" {
  mkdir -p "${target%/*}"
  options='{"kubernetes.io/fsType":"","kubernetes.io/pvOrVolumeName":"v","kubernetes.io/readwrite":"rw","size":"1Mi"}'
  run unshare --mount --propagation private bash -c '
    mount -t tmpfs test /run
    for verb in mount mount; do env -i "$1" mount "$2" "$3" || exit; done
    grep -c " $2 " /proc/self/mountinfo
    for verb in unmount unmount; do env -i "$1" unmount "$2" || exit; done
    grep -c " $2 " /proc/self/mountinfo; true' - "$driver" "$target" "$options"
  [ "$status" -eq 0 ]
  [ "$(grep -c '"Success"' <<<"$output")" -eq 4 ]
  [ "$(grep -v status <<<"$output" | tr '\n' ' ')" = '1 0 ' ]
}
