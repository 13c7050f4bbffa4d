#!/usr/bin/env bash
# The life of a shared volume, the same for every kind of server. Sourced by tests/guest/test.

# life NAME DRIVER OPTIONS STORE: OPTIONS is the inside of a JSON object; STORE is the server's own
# directory.
life() {
    local name=$1 driver=$2 options=$3 store=$4 pod
    says "$name: mount" "$ok" set_up one "$driver" "$options" || return
    says "$name: mount again" "$ok" set_up one "$driver" "$options"
    says "$name: one mount" '1' grep -c "$(target one "$driver")" /proc/self/mountinfo
    says "$name: write" '' in_volume one "$driver" write data "of $name"
    says "$name: the server has it" "of $name" cat "$store/data"
    says "$name: read back" "of $name" in_volume one "$driver" cat data
    says "$name: rename, make, remove" '' \
        in_volume one "$driver" sh -c 'mv data data2 && mkdir d && rmdir d && mv data2 data'
    says "$name: a second pod" "$ok" set_up two "$driver" "$options"
    says "$name: it sees the data" "of $name" in_volume two "$driver" cat data
    says "$name: a read-only pod" "$ok" set_up ro "$driver" "$options"',"kubernetes.io/readwrite":"ro"'
    says "$name: it reads" "of $name" in_volume ro "$driver" cat data
    says "$name: it cannot write" '*[Rr]ead-only file system*' in_volume ro "$driver" write data2 no
    says "$name: the others still can" '' in_volume two "$driver" write data2 two
    says "$name: neither suid nor dev" '' \
        finds sh -c "grep -F '$KUBELET' /proc/self/mounts | grep -vE ' (rw|ro),nosuid,nodev'"
    for pod in one two ro; do
        says "$name: unmount $pod" "$ok" tear_down "$pod" "$driver"
        says "$name: unmount $pod again" "$ok" tear_down "$pod" "$driver"
        says "$name: pod $pod is gone" '' remove_pod "$pod" "$driver"
    done
    says "$name: nothing is mounted" '' mounted_types
    says "$name: the data is still there" "of $name" cat "$store/data"
}
