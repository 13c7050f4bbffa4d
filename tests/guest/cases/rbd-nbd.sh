#!/usr/bin/env bash
# rbd by Ceph's daemon rbd-nbd: an image with a feature that the kernel's client lacks.
chapter "rbd-nbd"
mount -t cgroup2 groups /sys/fs/cgroup
once use_images
says "guest: rbd-nbd: the cluster is reached" '' quietly once reach_ceph
# by_daemon IMAGE: options of a volume without its key.
by_daemon() {
    printf '%s,"mounter":"rbd-nbd"' "$(image "$1")"
}
journaled="$(by_daemon journaled),$ceph_secret"
says "guest: rbd-nbd: the kernel lacks a feature" '*"Failure"*rbd feature disable*mounter: rbd-nbd*' \
    set_up one rbd "$(image journaled),$ceph_secret"
says "guest: rbd-nbd: the program is missing" '*"Failure"*install rbd-nbd*' set_up one rbd "$journaled"
ln -s ../lib/aside/rbd-nbd /usr/bin/rbd-nbd

watch_processes "$ceph_key"
block_life "guest: rbd-nbd" "$journaled"
# By the second protocol, too.
secure="$(by_daemon journaled | sed s/6789/3300/)"',"msMode":"secure","requestTimeout":"20"'
says "guest: rbd-nbd: mount for a look" "$ok" set_up one rbd "$secure,$ceph_secret"
says "guest: rbd-nbd: its daemon has been told the name" '*--cookie flexvol-*rbd/journaled' pgrep -a rbd-nbd
says "guest: rbd-nbd: in a group of its own" '1' sh -c 'cat /sys/fs/cgroup/flexvol/*/cgroup.procs | wc -l'
says "guest: rbd-nbd: whoever asks the kernel gets the same device" "$ok" \
    set_up two rbd "${secure/rbd-nbd/kernel},$ceph_secret"
says "guest: rbd-nbd: one device" '1' devices
says "guest: rbd-nbd: unmount two" "$ok" tear_down two rbd
grow=(expand rbd "$secure" "$(target one rbd)" 33554432 16777216)
says "guest: rbd-nbd: the image has to grow first" '*"Failure"*has 16Mi: grow it with rbd resize*' "${grow[@]}"
says "guest: rbd-nbd: although it is claimed the image grows" 'done' ask_ceph resize journaled 32M
# The rbd-nbd of Debian 12 does not get through to the kernel.
says "guest: rbd-nbd: the kernel does not hear of it" '*"Failure"*mount it again*' "${grow[@]}"
says "guest: rbd-nbd: the device is as it was" 16777216 \
    sh -c 'blockdev --getsize64 "$(findmnt -nro SOURCE "$1")"' - "$(target one rbd)"
unwatch
says "guest: rbd-nbd: nothing of the key anywhere" '' betrayed
says "guest: rbd-nbd: unmount after a look" "$ok" tear_down one rbd
canary "guest: rbd-nbd" rbd "$(by_daemon journaled)" "$(by_daemon none)" key "$ceph_key"

by_file="$(by_daemon journaled)"',"keyring":"/etc/ceph/user.keyring","exclusive":"false"'
plain_by_file="$(by_daemon plain)"',"keyring":"/etc/ceph/user.keyring","exclusive":"false"'
pods_life "guest: rbd-nbd by pods" rbd "$plain_by_file" mapped
is_lost "guest: rbd-nbd lost" rbd "$plain_by_file" mapped
changed_life "guest: rbd-nbd changed" rbd "$plain_by_file" mapped
# From here on it attaches.
says "guest: rbd-nbd: staged: mountdevice" "$ok" stage rbd "$by_file"
says "guest: rbd-nbd: staged: a pod" "$ok" set_up one rbd "$by_file"
says "guest: rbd-nbd: staged: it reads" 'of guest: rbd-nbd' in_volume one rbd cat data
says "guest: rbd-nbd: staged: mounted again it grows" "$ok" grow rbd "$by_file" 16777216 33554432
says "guest: rbd-nbd: staged: it has grown" 16 mebibytes "$(staged rbd)"
says "guest: rbd-nbd: staged: unmount" "$ok" tear_down one rbd
says "guest: rbd-nbd: staged: the device is there" '*rbd-nbd*' mapped
says "guest: rbd-nbd: staged: unmountdevice" "$ok" unstage rbd
says "guest: rbd-nbd: staged: nothing is left" '' mapped
attaches rbd false

says "guest: rbd-nbd: a snapshot is made" 'done' ask_ceph snap journaled monday
monday="$(by_daemon journaled)"',"snapshot":"monday","kubernetes.io/readwrite":"ro"'",$ceph_secret"
says "guest: rbd-nbd: a snapshot" "$ok" set_up one rbd "$monday"
says "guest: rbd-nbd: a snapshot is read" 'of guest: rbd-nbd' in_volume one rbd cat data
says "guest: rbd-nbd: a snapshot, unmount" "$ok" tear_down one rbd
killed_anywhere "guest: rbd-nbd" "$journaled" 0.5 2

plain="$(by_daemon plain),$ceph_secret"
otherwise="${plain/ceph.test/$CEPH}"
says "guest: rbd-nbd: without a lock: mount" "$ok" set_up one rbd "$plain"
says "guest: rbd-nbd: without a lock: write" '' in_volume one rbd write data 'of an image without a lock'
says "guest: rbd-nbd: without a lock: not by the kernel besides" '*"Failure"*already*' \
    set_up two rbd "${otherwise/rbd-nbd/kernel}"
says "guest: rbd-nbd: without a lock: nor by another daemon" '*"Failure"*already*' set_up two rbd "$otherwise"
sync
pkill -KILL -x rbd-nbd
says "guest: rbd-nbd: its daemon is killed: unmount" "$ok" tear_down one rbd
says "guest: rbd-nbd: its daemon is killed: nothing is left" '' mapped
says "guest: rbd-nbd: its daemon is killed: mounted again" "$ok" set_up one rbd "$plain"
says "guest: rbd-nbd: its daemon is killed: the data" 'of an image without a lock' in_volume one rbd cat data
pkill -KILL -x rbd-nbd
says "guest: rbd-nbd: its daemon is killed: another pod gets another" "$ok" set_up two rbd "$plain"
says "guest: rbd-nbd: its daemon is killed: the data of the other" 'of an image without a lock' \
    in_volume two rbd cat data
says "guest: rbd-nbd: its daemon is killed: unmount one" "$ok" tear_down one rbd
says "guest: rbd-nbd: its daemon is killed: unmount two" "$ok" tear_down two rbd
says "guest: rbd-nbd: its daemon is killed: nothing is left at last" '' mapped

says "guest: rbd-nbd: the kernel has it" "$ok" set_up one rbd "${plain/rbd-nbd/kernel}"
says "guest: rbd-nbd: no daemon besides" '*"Failure"*already*' set_up two rbd "$otherwise"
says "guest: rbd-nbd: the kernel lets go" "$ok" tear_down one rbd
says "guest: rbd-nbd: another node has it" '' another_node claimed
says "guest: rbd-nbd: it is refused" '*"Failure"*another node*' \
    set_up one rbd "$(by_daemon claimed | sed s/6789/3300/),\"msMode\":\"crc\",$ceph_secret"
says "guest: rbd-nbd: another node lets go" '' leave_it

says "guest: rbd-nbd: no such image" '*"Failure"*rbd/nosuch*no such*' set_up one rbd "$(by_daemon nosuch),$ceph_secret"
says "guest: rbd-nbd: a wrong key" '*"Failure"*refuses user and key*' \
    set_up one rbd "$(by_daemon plain),$(secret key "$(<ceph/admin.key)")"
says "guest: rbd-nbd: is not told" '' never_said "$(<ceph/admin.key)"
says "guest: rbd-nbd: no key at all" '*"Failure"*auth get-key*' \
    set_up one rbd "$(by_daemon plain),$(secret key hunter2)"
LIMIT=10 says "guest: rbd-nbd: a silent monitor" '*"Failure"*dead-ceph.test*' \
    set_up one rbd "${plain/ceph.test/dead-ceph.test}"
says "guest: rbd-nbd: nothing of a failure is left" '' mapped
says "guest: rbd-nbd: nor mounted" '' mounted_types
rm /usr/bin/rbd-nbd
umount /sys/fs/cgroup
