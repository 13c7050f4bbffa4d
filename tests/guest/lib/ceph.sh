#!/usr/bin/env bash
# The Ceph cluster beside the guest. Sourced by tests/guest/test; tests/guest/beside-ceph brings it.

readonly CEPH=10.99.1.1

# The way there: QEMU's own network, which leads nowhere else.
reach_ceph() {
    modprobe virtio_net
    ip link set eth0 up
    ip address add 10.0.2.15/24 dev eth0
    ip route add default via 10.0.2.2
    mkdir -p /etc/ceph
    cp ceph/user.keyring /etc/ceph/
    chmod 600 /etc/ceph/user.keyring
    (: <"/dev/tcp/$CEPH/6789")
}

# ask_ceph WORD...: what an admin of the cluster does.
ask_ceph() {
    exec {line}<>"/dev/tcp/$CEPH/9999"
    echo "$*" >&"$line"
    cat <&"$line"
}

# another_node IMAGE: maps it as another node does, and prints the number of the device.
another_node() {
    printf '%s' "$CEPH:6789 name=user,secret=$(<ceph/user.key),noshare,exclusive rbd $1 -" \
        >/sys/bus/rbd/add_single_major
    basename "$(dirname "$(grep -l noshare /sys/bus/rbd/devices/*/config_info)")" >/tmp/another
}
leave_it() {
    cat /tmp/another >/sys/bus/rbd/remove_single_major
}
