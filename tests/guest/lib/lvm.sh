#!/usr/bin/env bash
# A node with LVM. Sourced by tests/guest/test.

# A group on a disk of memory.
start_lvm() {
    truncate -s 1G /tmp/disk &&
        lvm_ vgcreate data "$(losetup --find --show /tmp/disk)" &&
        lvm_ lvcreate --yes --size 300M --type thin-pool --name pool data && lvm_ lvchange --activate n data/pool
}
lvm_() {
    DM_DISABLE_UDEV=1 lvm "$@"
}
# volume NAME: the options that name it.
volume() {
    printf '"volumeGroup":"data","volume":"%s"' "$1"
}
# says_of FIELD NAME: what LVM says of a volume.
says_of() {
    lvm_ lvs --noheadings --units m -o "$1" "data/$2" | tr -d ' '
}
# What is active, and what a driver has left.
active() {
    dmsetup ls | grep -v '^No devices'
    left_over
}
capacity() {
    stat -f -c '%b %S' "$(staged lvm)" | awk \
        -v least="$1" '{print ($1 * $2 > least * 1000000 ? "at least " least : $1 * $2)}'
}
