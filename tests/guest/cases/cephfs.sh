#!/usr/bin/env bash
# cephfs: the kernel's client against a real cluster, without mount.ceph and ceph-fuse. What
# cases/rbd.sh has set up is there.
chapter "cephfs"
install_driver cephfs '{}'
says "guest: cephfs: none of its programs" '' finds sh -c 'command -v mount.ceph ceph-fuse'

# Another client, whose word counts as the server's.
mkdir -p /srv/cephfs
says "guest: cephfs: serves" '' mount -i -t ceph "$CEPH:6789:/" /srv/cephfs -o "name=user,secret=$ceph_key,noshare"
mkdir -p /srv/cephfs/web
says "guest: cephfs: with the capabilities of SECURITY.md" '' least shared cephfs "$by_ceph,$ceph_secret"
watch_processes "$ceph_key"
life "guest: cephfs" cephfs "$by_ceph,$ceph_secret,\"path\":\"/web\"" /srv/cephfs/web
unwatch
# Not by a program: whoever looks at processes would see the key there.
says "guest: cephfs: nothing of the key anywhere" '' betrayed
canary "guest: cephfs/kernel" cephfs "$by_ceph" "$by_ceph,\"path\":\"/none\"" key "$ceph_key"

asked='"mounter":"kernel","fsName":"fs1","mountOptions":"noatime,recover_session=clean"'
says "guest: cephfs: by the kernel alone" "$ok" set_up one cephfs "$by_ceph,$ceph_secret,$asked"
says "guest: cephfs: as asked" '* ceph rw,*noatime,*secret=<hidden>,*fs1,recover_session=clean*' \
    grep -F "$(target one cephfs)" /proc/self/mounts
says "guest: cephfs: unmount" "$ok" tear_down one cephfs
says "guest: cephfs: the second protocol" "$ok" \
    set_up one cephfs "${by_ceph/6789/3300},$ceph_secret,\"msMode\":\"prefer-crc\""
says "guest: cephfs: the second protocol, unmount" "$ok" tear_down one cephfs

says "guest: cephfs: no such directory" '*"Failure"*/none*no such directory*' \
    set_up one cephfs "$by_ceph,$ceph_secret,\"path\":\"/none\""
says "guest: cephfs: no such file system" '*"Failure"*fsName*' \
    set_up one cephfs "$by_ceph,$ceph_secret,\"fsName\":\"none\""
says "guest: cephfs: a wrong key" '*"Failure"*user and key*' \
    set_up one cephfs "$by_ceph,$(secret key "$(<ceph/admin.key)")"
says "guest: cephfs: is not told" '' never_said "$(<ceph/admin.key)"
says "guest: cephfs: nobody listens" '*"Failure"*ceph.test:9*refuses*' \
    set_up one cephfs "${by_ceph/6789/9},$ceph_secret"
says "guest: cephfs: a silent monitor" '*"Failure"*dead-ceph.test*' \
    set_up one cephfs "${by_ceph/ceph/dead-ceph},$ceph_secret"
says "guest: cephfs: nothing of a failure is left" '' mounted_types

hasty cephfs
falls_silent "guest: cephfs dropped" cephfs ceph.test "$by_ceph,$ceph_secret"
vendor=example
umount -l /srv/cephfs
