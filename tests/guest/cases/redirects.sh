#!/usr/bin/env bash
# Servers that send clients to another one, which policy.servers does not allow: referrals of NFS 4,
# and DFS of SMB. What holds is in docs/settings.md, "What is not covered". Redirects of HTTP are in
# tests/node/fuse/redirects.rs: its clients are not in this guest.
chapter "redirects"
LIMIT=60 says "guest: redirects: knfsd serves" '' quietly once start_nfs
LIMIT=60 says "guest: redirects: smbd serves" '' quietly once start_smb
name_server first.test 127.0.1.5
name_server elsewhere.test 127.0.1.6
only='{"policy":{"servers":["first.test","127.0.1.5"]}}'

# refers: a directory whose data is another server's, which the first one tells a client of version
# 4.
refers() {
    mkdir -p /srv/moved /srv/elsewhere
    mount -t tmpfs moved /srv/moved && mount -t tmpfs elsewhere /srv/elsewhere || return
    echo elsewhere >/srv/elsewhere/data
    cat >>/etc/exports <<'EXPORTS'
/srv/elsewhere *(ro,insecure,no_subtree_check,fsid=7)
/srv/moved *(ro,insecure,no_subtree_check,fsid=8,refer=/srv/elsewhere@127.0.1.6)
EXPORTS
    exportfs -ra
}
says "guest: redirects: nfs: one directory is another server's" '' quietly refers
install_driver nfs "$only"
moved='"server":"first.test","path":"/srv/moved","connectTimeout":"1"'
says "guest: redirects: nfs: that is not allowed" '*"Failure"*elsewhere.test*' \
    set_up one nfs '"server":"elsewhere.test","path":"/srv/elsewhere"'
for version in 4.0 4.2; do
    # The kernel has no option against it.
    says "guest: redirects: nfs v$version: it is followed all the same" "$ok" \
        set_up one nfs "$moved,\"version\":\"$version\""
    says "guest: redirects: nfs v$version: to the other's data" elsewhere in_volume one nfs cat data
    says "guest: redirects: nfs v$version: as the mount table says" '*:/srv/elsewhere *' \
        grep -F "$(target one nfs)" /proc/self/mounts
    says "guest: redirects: nfs v$version: unmounted" "$ok" tear_down one nfs
done
# From 4.1 on the kernel sees that both are one server, and keeps to the way it has.
says "guest: redirects: nfs v4.0: mounted once more" "$ok" set_up one nfs "$moved,\"version\":\"4.0\""
says "guest: redirects: nfs v4.0: by the other's address" '*addr=127.0.1.6*' \
    grep -F "$(target one nfs)" /proc/self/mounts
says "guest: redirects: nfs v4.0: and unmounted" "$ok" tear_down one nfs
says "guest: redirects: nfs v3 has none" "$ok" set_up one nfs "$moved,\"version\":\"3\""
says "guest: redirects: nfs v3: the first server's own" '' in_volume one nfs ls
says "guest: redirects: nfs v3: unmounted" "$ok" tear_down one nfs

# links: a share in which a directory is a link to another server's share.
links() {
    mkdir -p /srv/smb-dfs
    echo elsewhere >/srv/smb-guest/data
    ln -sfn 'msdfs:127.0.1.6\guest' /srv/smb-dfs/there
    printf '[dfs]\n    path = /srv/smb-dfs\n    msdfs root = yes\n    guest ok = yes\n' >>/etc/samba/smb.conf
    pkill -HUP -o -x smbd
}
says "guest: redirects: cifs: a share with a link" '' quietly links
dfs='"source":"//first.test/dfs","connectTimeout":"1",'$(secret username alice),$(secret password "$SMB_PASSWORD")
# not_followed NAME OPTIONS: the share is mounted, and the link in it leads nowhere.
not_followed() {
    says "guest: redirects: cifs: $1: mounted" "$ok" set_up one cifs "$2"
    says "guest: redirects: cifs: $1: the link" '*Object is remote' in_volume one cifs cat there/data
    says "guest: redirects: cifs: $1: unmounted" "$ok" tear_down one cifs
}
install_driver cifs "$only"
not_followed "by a list" "$dfs"
install_driver cifs '{}'
# This kernel (6.1) follows none that is mounted option by option, and refuses the share that has
# them.
says "guest: redirects: cifs: every server: DFS is tried" '*"Failure"*Invalid argument*' set_up one cifs "$dfs"
not_followed "every server, nodfs" "$dfs,\"mountOptions\":\"nodfs\""
install_driver nfs '{}'
rm /srv/smb-guest/data
says "guest: redirects: nothing is left" '' mounted_types
