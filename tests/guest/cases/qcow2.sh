#!/usr/bin/env bash
# qcow2: images that qemu-storage-daemon shows as a file, in a kernel where a file system grows
# while it is mounted.
chapter "qcow2"
mkdir -p /tmp/images
modprobe fuse
mount -t cgroup2 groups /sys/fs/cgroup
install_driver qcow2 '{"policy":{"imageRoots":["/tmp/images"]}}'

# What is left of images on the node; what is in /run/flexvol/stores says what was made of a file.
shown() {
    losetup --list --noheadings --output BACK-FILE
    pgrep -a qemu-storage-da
    finds ls -d /run/flexvol/images/* 2>/dev/null
}

web='"file":"web.qcow2","size":"16Mi"'
says "guest: qcow2: with the capabilities of SECURITY.md" '' least shared qcow2 "$web"
pods_life "guest: qcow2 by pods" qcow2 "$web" shown
says "guest: qcow2 by pods: killed anywhere" '' killed shared qcow2 '"file":"NEW.qcow2","size":"16Mi"' shown 0.05 0.7
is_lost "guest: qcow2 lost" qcow2 "$web" shown
changed_life "guest: qcow2 changed" qcow2 "$web" shown
# From here on it attaches.
device_life "guest: qcow2" qcow2 "$web" shown
says "guest: qcow2: killed anywhere" '' killed staged qcow2 '"file":"NEW.qcow2","size":"16Mi"' shown 0.05 0.3 0.7
says "guest: qcow2: staged to grow" "$ok" stage qcow2 "$web"
says "guest: qcow2: before" 0 mebibytes "$(staged qcow2)"
says "guest: qcow2: grows" "$ok" grow qcow2 "$web" 16777216 50331648
says "guest: qcow2: after" 32 mebibytes "$(staged qcow2)"
says "guest: qcow2: its data" "of guest: qcow2" cat "$(staged qcow2)/data"
says "guest: qcow2: grown, let go" "$ok" unstage qcow2
says "guest: qcow2: nothing is left of it" '' shown
umount /sys/fs/cgroup
