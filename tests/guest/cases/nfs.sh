#!/usr/bin/env bash
# nfs: the kernel's client against the kernel's server, without mount.nfs.
chapter "nfs"
LIMIT=60 says "guest: knfsd serves" '' quietly once start_nfs
name_server nfs.test 127.0.1.1
name_server dead.test 127.0.1.9
drop_server dead.test
install_driver nfs '{}'
says "guest: no mount.nfs" '' finds sh -c 'command -v mount.nfs mount.nfs4'

export_of() {
    printf '"server":"%s","path":"%s","connectTimeout":"1"' "$1" "${2:-/srv/nfs}"
}

for version in 3 4.1 4.2; do
    life "guest: nfs v$version" nfs "$(export_of nfs.test),\"version\":\"$version\"" /srv/nfs
done

for version in 3 4.2; do
    says "guest: nfs v$version: with the capabilities of SECURITY.md" '' \
        least shared nfs "$(export_of nfs.test),\"version\":\"$version\""
done
says "guest: nfs v4.0: mount" "$ok" set_up one nfs "$(export_of nfs.test),\"version\":\"4.0\""
says "guest: nfs v4.0: is what is mounted" '*vers=4.0,*' grep -F "$(target one nfs)" /proc/self/mounts
says "guest: nfs v4.0: write" '' in_volume one nfs write data0 data
says "guest: nfs v4.0: unmount" "$ok" tear_down one nfs
says "guest: nfs: without a version" "$ok" set_up one nfs "$(export_of nfs.test)"
says "guest: nfs: the newest is taken" '*vers=4.2,*' grep -F "$(target one nfs)" /proc/self/mounts
says "guest: nfs: and unmounted" "$ok" tear_down one nfs

for version in 3 4.2; do
    says "guest: nfs v$version: by IPv6" "$ok" set_up one nfs "$(export_of ::1),\"version\":\"$version\""
    says "guest: nfs v$version: by IPv6, written" '' in_volume one nfs write six data
    says "guest: nfs v$version: by IPv6, a second time" "$ok" set_up one nfs "$(export_of ::1),\"version\":\"$version\""
    says "guest: nfs v$version: by IPv6, unmounted" "$ok" tear_down one nfs
    says "guest: nfs v$version: by IPv6 in brackets" "$ok" \
        set_up one nfs "$(export_of '[::1]'),\"version\":\"$version\""
    says "guest: nfs v$version: unmounted once more" "$ok" tear_down one nfs
done

says "guest: nfs: a silent first server" "$ok" set_up one nfs "$(export_of dead.test,nfs.test)"
says "guest: nfs: the second serves" '*addr=127.0.1.1*' grep -F "$(target one nfs)" /proc/self/mounts
says "guest: nfs: and is unmounted" "$ok" tear_down one nfs
says "guest: nfs: all servers silent" '*"Failure"*dead.test*' set_up one nfs "$(export_of dead.test)"
says "guest: nfs: a name nobody knows" '*"Failure"*nowhere.test*' set_up one nfs "$(export_of nowhere.test)"
says "guest: dnsmasq serves" '' quietly start_dns
says "guest: nfs: a Service's name" "$ok" set_up one nfs "$(export_of nfs.svc.test),\"nameserver\":\"127.0.0.53\""
says "guest: nfs: a Service serves" '*addr=127.0.1.1*' grep -F "$(target one nfs)" /proc/self/mounts
says "guest: nfs: a Service is unmounted" "$ok" tear_down one nfs
says "guest: nfs: a name the nameserver does not know" '*"Failure"*nowhere.test*127.0.0.53*' \
    set_up one nfs "$(export_of nowhere.test),\"nameserver\":\"127.0.0.53\""
says "guest: nfs: a helper that is not there" '*"Failure"*mount.nfs*nfs-common*' \
    set_up one nfs "$(export_of nfs.test),\"helper\":\"always\""
ln -s ../lib/aside/mount.nfs /usr/sbin/mount.nfs
says "guest: nfs: by mount.nfs" "$ok" set_up one nfs "$(export_of nfs.test),\"helper\":\"always\""
says "guest: nfs: by mount.nfs, again" "$ok" set_up one nfs "$(export_of nfs.test),\"helper\":\"always\""
says "guest: nfs: by mount.nfs, written" '' in_volume one nfs write helped data
says "guest: nfs: by mount.nfs, unmounted" "$ok" tear_down one nfs
rm /usr/sbin/mount.nfs
says "guest: nfs: nothing listens" '*"Failure"*nfs.test*' set_up one nfs "$(export_of nfs.test),\"port\":\"9\""

for version in 3 4.2; do
    options="$(export_of nfs.test),\"version\":\"$version\""
    says "guest: nfs v$version: a sub-directory is made" "$ok" \
        set_up one nfs "$options,\"subDir\":\"v$version/b c\",\"createSubDir\":\"true\",\"mode\":\"0750\""
    says "guest: nfs v$version: with its mode" 750 stat -c %a "/srv/nfs/v$version/b c"
    says "guest: nfs v$version: written there" '' in_volume one nfs write inside data
    says "guest: nfs v$version: it is the volume" data cat "/srv/nfs/v$version/b c/inside"
    says "guest: nfs v$version: one that is there" "$ok" \
        set_up two nfs "$options,\"subDir\":\"v$version/b c\",\"createSubDir\":\"true\""
    says "guest: nfs v$version: unmount one" "$ok" tear_down one nfs
    says "guest: nfs v$version: unmount two" "$ok" tear_down two nfs
    says "guest: nfs v$version: no sub-directory" '*"Failure"*missing*' set_up one nfs "$options,\"subDir\":\"missing\""
    says "guest: nfs v$version: none above the export" '*"Failure"*' \
        set_up one nfs "$options,\"subDir\":\"../../etc\",\"createSubDir\":\"true\""
    says "guest: nfs v$version: an export that is not there" '*"Failure"*/srv/none*' \
        set_up one nfs "$(export_of nfs.test /srv/none),\"version\":\"$version\""
    says "guest: nfs v$version: an export for others" '*"Failure"*/srv/nfs-others*' \
        set_up one nfs "$(export_of nfs.test /srv/nfs-others),\"version\":\"$version\""
    says "guest: nfs v$version: a read-only export" "$ok" \
        set_up one nfs "$(export_of nfs.test /srv/nfs-ro),\"version\":\"$version\""
    says "guest: nfs v$version: is read" served in_volume one nfs cat data
    says "guest: nfs v$version: and not written" '*@(Read-only file system|Permission denied)*' \
        in_volume one nfs write data no
    says "guest: nfs v$version: unmounted" "$ok" tear_down one nfs
    says "guest: nfs v$version: nothing of a failure is left" '' mounted_types
done

says "guest: nfs v3: ports given, no portmapper" "" bash -c '
    nft add rule ip fault input tcp dport 111 drop && nft add rule ip fault input udp dport 111 drop'
says "guest: nfs v3: mounts" "$ok" \
    set_up one nfs "$(export_of nfs.test),\"version\":\"3\",\"port\":\"2049\",\"mountPort\":\"20048\""
says "guest: nfs v3: unmounts" "$ok" tear_down one nfs
usual_rules
