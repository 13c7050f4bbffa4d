#!/usr/bin/env bash
# Images of the cluster, whoever maps them. Sourced by tests/guest/test.

# The driver, and what its volumes say.
use_images() {
    name_server ceph.test "$CEPH"
    name_server dead-ceph.test 127.0.6.9
    drop_server dead-ceph.test
    install_driver rbd '{}'
    ceph_key=$(<ceph/user.key)
    by_ceph='"monitors":"ceph.test:6789","user":"user","connectTimeout":"1"'
    ceph_secret=$(secret key "$ceph_key")
}
image() {
    printf '%s,"image":"%s"' "$by_ceph" "$1"
}

# How many devices there are of images.
devices() {
    { ls -d /dev/rbd[0-9]* 2>/dev/null; nbds; } | wc -l
}

# What is left of images on the node.
mapped() {
    ls -d /dev/rbd[0-9]* /run/flexvol/stores/* /run/flexvol/clusters/* /sys/fs/cgroup/flexvol/* 2>/dev/null
    cat /sys/bus/rbd/devices/*/name 2>/dev/null
    nbds
    finds pgrep -a rbd-nbd
}

# What is left of keys, mounted or not.
lent() {
    finds ls -d /run/flexvol/clusters/* 2>/dev/null
}

# The kernel lets go of a device when its cluster is back.
gone_in_the_end() {
    local tries=0
    while [[ -n $(mapped) && $tries -lt 50 ]]; do
        sleep 0.2
        tries=$((tries + 1))
    done
    mapped
}

# block_life NAME OPTIONS: what pods see of one device, and what is left of it.
block_life() {
    local name=$1 options=$2 pod
    says "$name: mount" "$ok" set_up one rbd "$options" || return
    says "$name: mount again" "$ok" set_up one rbd "$options"
    says "$name: write" '' in_volume one rbd write data "of $name"
    says "$name: a second pod" "$ok" set_up two rbd "$options"
    says "$name: it sees the data" "of $name" in_volume two rbd cat data
    says "$name: one device" '1' devices
    says "$name: a read-only pod" "$ok" set_up ro rbd "$options"',"kubernetes.io/readwrite":"ro"'
    says "$name: it cannot write" '*[Rr]ead-only file system*' in_volume ro rbd write data2 no
    for pod in one two ro; do
        says "$name: unmount $pod" "$ok" tear_down "$pod" rbd
        says "$name: pod $pod is gone" '' remove_pod "$pod" rbd
    done
    says "$name: unmount again" "$ok" tear_down one rbd
    says "$name: nothing is left" '' mapped
    says "$name: mount it later" "$ok" set_up one rbd "$options"
    says "$name: the data is still there" "of $name" in_volume one rbd cat data
    says "$name: unmount at last" "$ok" tear_down one rbd
    says "$name: nothing is left at last" '' mapped
}

# killed_call OPTIONS SECONDS: a mount is killed after so long wherever it is, supervisor and
# worker.
killed_call() {
    local call
    set -m
    set_up one rbd "$1" >/dev/null 2>&1 &
    call=$!
    sleep "$2"
    kill -KILL -- "-$call"
    pkill -KILL -f "example~rbd/rbd mount"
    wait "$call"
    true
} 2>/dev/null

# killed_anywhere NAME OPTIONS SECONDS...: after each of which a call is killed; what block_life has
# written is there.
killed_anywhere() {
    local name=$1 options=$2 moment
    shift 2
    for moment in "$@"; do
        says "$name: killed after $moment s" '' killed_call "$options" "$moment"
        says "$name: killed after $moment s, mounted again" "$ok" in_the_end set_up one rbd "$options"
        says "$name: killed after $moment s, no key lies about" '' lent
        says "$name: killed after $moment s, the data" "of $name" in_volume one rbd cat data
        says "$name: killed after $moment s, unmounted" "$ok" tear_down one rbd
        says "$name: killed after $moment s, nothing is left" '' mapped
    done
    says "$name: killed and only unmounted" '' killed_call "$options" "$moment"
    says "$name: killed, unmount" "$ok" in_the_end tear_down one rbd
    says "$name: killed, unmount, nothing is left" '' mapped
}
