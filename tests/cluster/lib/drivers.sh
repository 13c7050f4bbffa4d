#!/usr/bin/env bash
# shellcheck disable=SC2034,SC2154 # what describe sets is read by the chapters
# The drivers that this kernel can serve, a few words each. Sourced by chapters that use them.
#
# `describe NAME` sets what is known of a driver, by its function below:
#   driver=     what it is called in the cluster            settings=()  further words of flexvol install
#   options=    of its volume, and secret=, what opens it: each the inside of a YAML flow mapping; fstype=
#   root=       group and mode of it that a pod of user 1000 with fsGroup 2000 sees, as stat -c %g:%a prints them
#   server=     who serves it: volumes of both nodes are the same storage then
#   measured=   whether kubelet measures it                 grows=       from how many MiB to how many
#   part=       what a subPath names: a directory that kubelet makes, if it is not there
# and what pods find that write and read at the same time, each in a volume of its own:
#   file=       what the first reads after it wrote `user`, and wrote=, what it says then
#   found=      what the second finds in its subPath after it wrote `rest` there, by both paths
#   reads=      what one that comes later reads, and sees=, what it says then
describe() {
    driver=flexvol/$1 settings=() options='' secret='' fstype='' root='' server='' measured='' grows='' part=sub
    file=user wrote=user found=$'rest\nrest' reads='/v/user /v/sub/rest' sees=$'user\nrest\n'
    "of_$1"
}

# holds FILE TEXT: no volume shows what is written to another; each begins with this.
holds() { file=$1 wrote=$2 reads=/v/$1 sees=$2$'\n'; }

readonly ROOTS=/var/lib/volumes
SERVER=$(node_address node-1)
readonly SERVER
# given FILE: what a server says of itself, or what opens it, as a word of YAML.
given() { on node-1 cat -- "/run/servers/$1" | jq -Rsc .; }

of_tmpfs() { options='size: 16Mi' root=2000:2777 measured=yes reads='' sees=''; }

of_bind() {
    settings=(--set "policy.bindRoots=$ROOTS")
    options="source: $ROOTS/bind, create: 'true', mode: '1777', gid: '3000'" root=3000:1777
}

# What is written goes to memory.
of_overlay() {
    settings=(--set "policy.bindRoots=$ROOTS")
    options="lower: $ROOTS/lower, size: 16Mi" root=2000:2777 measured=yes
    holds file below
}

of_ext4() { image ext4 64; }
of_xfs() { image xfs 320; }
of_btrfs() { image btrfs 320; }
image() {
    driver=flexvol/image options="file: $1.img, size: ${2}Mi" fstype=$1 root=2000:2775 measured=yes
    grows="$2 $(($2 + 64))"
}

of_qcow2() { options='file: disk.qcow2, size: 320Mi' fstype=xfs root=2000:2775 measured=yes grows='320 384'; }

# Nothing is written there.
of_secretfiles() {
    secret='file: "secret\n"' root=0:755 part=file measured=yes
    holds file secret
    wrote=$'*Read-only file system\nsecret' found=$'secret\nsecret'
}

of_exec() {
    settings=(--set 'exec.commands={"mount": ["/bin/mount", "--bind", "'"$ROOTS"'/exec/{option.share}", "{target}"]}'
        --set 'exec.options=["share"]')
    options='share: a' secret='token: unused' root=0:1777
}

of_git() {
    options="repository: 'git://$SERVER/web.git'" root=2000:2775 server=git part=dir
    holds file committed
}

of_sshfs() {
    options="server: $SERVER, port: '2222', path: /run/servers/sshd/files, hostKey: $(given sshd/host.line)"
    secret="ssh-privatekey: $(given sshd/user)" root=2000:770 server=sshd
}

of_s3() {
    options="bucket: web, endpoint: 'http://$SERVER:5000'"
    secret='accessKeyID: AKIAEXAMPLE, secretAccessKey: secret/key+of=store' root=2000:777 server=s3
}

of_rclone() {
    options="remote: webdav, path: rclone, backend.url: 'http://$SERVER:8080/', backend.vendor: other"
    options+=', backend.user: web'
    secret="pass: $(given webdav/password)" root=2000:770 server=webdav
}

of_webdav() {
    options="url: 'http://$SERVER:8080/davfs2', user: web"
    secret="password: $(given webdav/password)" root=0:777 server=webdav
}

of_glusterfs() { options="servers: $SERVER, volume: web" root=0:1777 server=gluster; }

of_cephfs() {
    options="monitors: $SERVER, user: user, path: /web"
    secret="key: $(given ceph/cluster/user.key)" root=0:1777 server=ceph
}

# flex REFERENCE [MORE]: the volume that was described, as a YAML flow mapping; REFERENCE is the
# inside of its secretRef.
flex() {
    local reference=${secret:+secretRef: {$1\}, }
    echo "{driver: $driver, ${fstype:+fsType: $fstype, }$reference${2:+$2, }options: {$options}}"
}

# opens NAME NAMESPACE: the Secret that opens it.
opens() {
    [[ -n $secret ]] || return 0
    echo ---
    echo "{apiVersion: v1, kind: Secret, metadata: {name: $1, namespace: $2}, type: $driver, stringData: {$secret}}"
}

# set_up NODE: installs what was described.
set_up() { on "$1" flexvol install "${driver#flexvol/}" --plugin-dir "$PLUGINS" "${settings[@]}"; }

# serve NAME...: begins to, and says nothing when they are there.
serve() { on node-1 "$here/servers" start "$@" & disown; }
# served NAME: waits until that server is there, or says why it is not.
served() {
    eventually 90 on node-1 test -e "/run/servers/$1/ended"
    on node-1 test -e "/run/servers/$1/ready" || die "no $1: $(tail -n 3 -- "$CLUSTER/log/node-1-serve-$1.log")"
}
