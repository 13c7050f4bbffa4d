#!/usr/bin/env bash
# The guest's servers. Sourced by tests/guest/test; each function returns when its server answers.

# once FUNCTION: starts what it starts, unless a case before has.
once() {
    [[ -e /tmp/started-$1 ]] || { "$1" && : >"/tmp/started-$1"; }
}

# answers PORT: waits until somebody listens there.
answers() {
    local tries=0
    until (: <"/dev/tcp/127.0.0.1/$1") 2>/dev/null; do
        tries=$((tries + 1))
        [[ $tries -lt 200 ]] || return 1
        sleep 0.05
    done
}

# NFS by the kernel, v3 to v4.2. /srv/nfs is for everybody, /srv/nfs-ro read-only, /srv/nfs-others
# for another host.
start_nfs() {
    local directory
    for directory in nfs nfs-ro nfs-others; do
        mkdir -p "/srv/$directory"
        mount -t tmpfs "$directory" "/srv/$directory"
    done
    chmod 777 /srv/nfs
    echo served >/srv/nfs-ro/data
    cat >/etc/exports <<'EXPORTS'
/srv/nfs *(rw,sync,no_root_squash,insecure,no_subtree_check,fsid=1)
/srv/nfs-ro *(ro,insecure,no_subtree_check,fsid=2)
/srv/nfs-others 192.0.2.1(rw,insecure,no_subtree_check,fsid=3)
EXPORTS
    modprobe -a nfsd nfs nfsv3 nfsv4
    mount -t nfsd nfsd /proc/fs/nfsd
    # No client is to be waited for after a start that has none before it.
    echo 10 >/proc/fs/nfsd/nfsv4leasetime
    echo 10 >/proc/fs/nfsd/nfsv4gracetime
    rpcbind -w
    exportfs -ra
    rpc.mountd --port 20048
    rpc.nfsd 4
    answers 2049 && answers 20048
}

# SMB: [share] for two users, [guest] for everybody, [shared $] with a name that needs care.
readonly SMB_PASSWORD='p,a"s'\''s $w!o\rd' SMB_UTF8='pä,ß wörd€ '
start_smb() {
    local directory
    for directory in smb smb-guest smb-odd; do
        mkdir -p "/srv/$directory"
        chmod 777 "/srv/$directory"
    done
    echo odd >/srv/smb-odd/data
    cat >/etc/samba/smb.conf <<'CONF'
[global]
    workgroup = GUEST
    disable netbios = yes
    load printers = no
    disable spoolss = yes
    map to guest = bad user
    log file = /srv/smbd.log
    smb ports = 445
[share]
    path = /srv/smb
    read only = no
    valid users = alice zoe
    force user = root
[guest]
    path = /srv/smb-guest
    read only = no
    guest ok = yes
[odd $share]
    path = /srv/smb-odd
    valid users = alice
CONF
    echo 'alice:x:3001:3001::/:/bin/false' >>/etc/passwd
    echo 'zoe:x:3002:3002::/:/bin/false' >>/etc/passwd
    printf '%s\n%s\n' "$SMB_PASSWORD" "$SMB_PASSWORD" | smbpasswd -s -a alice
    printf '%s\n%s\n' "$SMB_UTF8" "$SMB_UTF8" | smbpasswd -s -a zoe
    # The client's module takes seconds to load here.
    modprobe cifs
    smbd -D
    answers 445
}

# DNS, as a cluster has it: only who asks 127.0.0.53 knows nfs.svc.test.
start_dns() {
    dnsmasq --conf-file=/dev/null --no-resolv --no-hosts --user=root --pid-file=/run/dnsmasq.pid \
        --listen-address=127.0.0.53 --bind-interfaces --address=/nfs.svc.test/127.0.1.1
}

# NBD by nbd-server: an export that can be written, and one that cannot.
start_nbd() {
    mkdir -p /srv/nbd
    truncate -s 16M /srv/nbd/web
    truncate -s 1M /srv/nbd/frozen
    cat >/srv/nbd/conf <<'CONF'
[generic]
    user = root
    group = root
[web]
    exportname = /srv/nbd/web
[frozen]
    exportname = /srv/nbd/frozen
    readonly = true
CONF
    nbd-server -C /srv/nbd/conf
    answers 10809
}
