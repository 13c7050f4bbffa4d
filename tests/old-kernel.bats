#!/usr/bin/env bats
# shellcheck disable=SC2016 # what is in single quotes, an inner shell expands
# The ways for kernels without the mount API (before 5.2), mount_setattr (5.12), openat2 (5.6) and
# close_range (5.9): strace answers those calls with ENOSYS, as such a kernel does. Everything must
# work as with them. Needs FLEXVOL_RELEASE, the static binary; tests/run sets it.

setup() {
  [ -n "${FLEXVOL_RELEASE:-}" ] || skip "FLEXVOL_RELEASE is not set: use tests/run"
  base=$BATS_TEST_TMPDIR
  mkdir -p "$base/source/sub" "$base/images"
  echo data >"$base/source/file"
  for name in tmpfs bind image; do
    mkdir -p "$base/plugins/example~$name" "$base/pods/1/volumes/example~$name/"{a,b}
    cp -- "$FLEXVOL_RELEASE" "$base/plugins/example~$name/$name"
    printf '{"policy":{"bindRoots":["%s"],"imageRoots":["%s"]}}' "$base/source" "$base/images" \
      >"$base/plugins/example~$name/.flexvol.json"
  done
}

# Runs script $1 in a mount namespace of its own, on an old kernel. It has `flexvol DRIVER VERB
# VOLUME [OPTIONS]` and
# `flags DRIVER VOLUME`, those of the mount there.
on_old_kernel() {
  run unshare --mount --propagation private bash -euc '
    mount -t tmpfs test /run
    base=$1; ulimit -n 64 # the old way to close descriptors tries each
    old=fsopen,fsconfig,fsmount,open_tree,move_mount,mount_setattr,openat2,close_range,pidfd_open
    volume() { echo "$base/pods/1/volumes/example~$1/$2"; }
    flexvol() {
      strace -f -qq -o "$base/trace" -e inject="$old:error=ENOSYS" \
        "$base/plugins/example~$1/$1" "$2" "$(volume "$1" "$3")" "${@:4}"
    }
    flags() { awk -v target="$(volume "$1" "$2")" "\$5 == target {print \$6}" /proc/self/mountinfo; }
    '"$1" - "$base"
  printf '%s\n' "$output"
  [ "$status" -eq 0 ]
}

ok='{"status":"Success"}'

printed() {
  [ "$output" = "$(printf '%s\n' "$@")" ]
}

@test "old kernel: tmpfs, read-only, with options" {
  on_old_kernel '
    flexvol tmpfs mount a "{\"size\":\"1Mi\",\"mountOptions\":\"noexec\",\"kubernetes.io/readwrite\":\"ro\"}"
    flags tmpfs a; flexvol tmpfs unmount a; flags tmpfs a'
  printed "$ok" ro,nosuid,nodev,noexec,relatime "$ok"
}

@test "old kernel: bind a directory twice, and a file" {
  on_old_kernel '
    for time in 1 2; do flexvol bind mount a "{\"source\":\"$base/source\",\"kubernetes.io/readwrite\":\"ro\"}"; done
    flags bind a; cat "$(volume bind a)/file"; flexvol bind unmount a; flags bind a
    flexvol bind mount b "{\"source\":\"$base/source/file\"}"; cat "$(volume bind b)"; flexvol bind unmount b'
  printed "$ok" "$ok" ro,nosuid,nodev,relatime data "$ok" "$ok" data "$ok"
}

@test "old kernel: no symlink is followed" {
  ln -s /etc "$base/source/out"
  on_old_kernel 'flexvol bind mount a "{\"source\":\"$base/source/out\"}"; flags bind a'
  [[ $output == *'leads through a symlink'* && ${#lines[@]} -eq 1 ]]
}

@test "old kernel: an image, read-only and read-write at once" {
  on_old_kernel '
    flexvol image mount a "{\"file\":\"i\",\"size\":\"64Mi\",\"kubernetes.io/readwrite\":\"rw\"}"
    flexvol image unmount a
    flexvol image mount a "{\"file\":\"i\",\"kubernetes.io/readwrite\":\"ro\"}"
    flexvol image mount b "{\"file\":\"i\"}"
    flags image a; flags image b; flexvol image unmount a; flexvol image unmount b
    losetup --all | grep -F "$base" || echo none'
  printed "$ok" "$ok" "$ok" "$ok" {ro,rw},nosuid,nodev,relatime "$ok" "$ok" none
}
