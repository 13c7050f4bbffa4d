#!/usr/bin/env bash
# shellcheck disable=SC2154,SC2034 # set or read by tests/cluster/play
# Volumes of the drivers that people have today, under their own names and as their users write them
# (examples/profiles): only servers, what opens them, and where the node has its files are this
# cluster's. Sourced by tests/cluster/chapter.
#
# Not here: tests/guest has what needs a file system or a device that few kernels have (fstab/cifs,
# juliohm/cifs, microsoft.com/smb, bertera.it/smb, openshift.io/cifs, hodique.info/cifs, k8s/nfs,
# bestgopher/nfs, alicloud/nas, cds/nas, kubernetes.io/lvm, sysoperator.pl/lvm, angeloxx/lvm,
# kubernetes.io/rbd, ceph.rook.io/block, kubernetes.io/iscsi). Only their owners have servers of
# awprice/gcs and azure/blobfuse, and Debian has none of fq/lizardfs.
# shellcheck source=tests/cluster/lib/drivers.sh
. "$here/lib/drivers.sh"

# of PROFILE: what the example becomes, and what is seen of it. Each sets:
#   edits=     what sed does to the example            words=()   further words of flexvol install
#   sees=      what a pod with the PV reads after it wrote `pv`, and shares=, what the example's own pod reads then
#   attaches=  whether the controllers need it, too    from=      the server it needs
of() {
    edits='' words=() sees=pv shares=pv attaches='' from=''
    case $1 in
    */git*) from=git ;;
    nect.com/*) from=sftp ;;
    alicloud/oss | ibm/*) from=s3 ;;
    */gl*) from=gluster ;;
    */rook | */cephfs) from=ceph ;;
    esac
    [[ -z $from ]] || served "$from" || return
    case $1 in
    k8s/dummy) shares='' ;;
    rancher/secrets) sees=sesame shares=sesame edits='s/"…"/"sesame"/' ;;
    # Each volume has a directory by its name.
    ramax.com/local-storage) words=(--set policy.bindRoots=/srv/local) shares='' ;;
    kvaps/*)
        words=(--set policy.imageRoots=/srv/kube-volumes) attaches=yes
        edits="s,kube-volumes/test,kube-volumes/${1#*/},"
        ;;
    alicloud/oss)
        words=(--set pathStyle=true)
        edits="s,oss-cn-hangzhou.aliyuncs.com,http://$SERVER:5000,; s,sigma-python,oss,; s,\"…\",AKIAEXAMPLE,"
        ;;
    ibm/ibmc-s3fs)
        edits="s,https://s3.*cloud,http://$SERVER:5000,; s,eu-de-standard,us-east-1,; s,\"web\",ibm,
            s,\"…\",AKIAEXAMPLE,"
        ;;
    rht/glfs-subvol) edits="s,192[0-9.:]*,$SERVER," ;;
    kubernetes.io/glusterfs) edits="s/10.0.0.1,10.0.0.2/$SERVER/" ;;
    nect.com/sshflex)
        edits="s,files.example.com,$SERVER,; s,hostKey:.*,hostKey: $(given sftp/host.line),
            s/\"…\"/$(given sftp/password | sed 's/[\\&/]/\\&/g')/"
        ;;
    ceph.rook.io/rook)
        edits="s,monitors:.*,monitors: $SERVER,; s,myfs,fs1,; s|\"…\"|$(given ceph/cluster/admin.key)|"
        ;;
    kubernetes.io/cephfs) edits="s,monitors:.*,monitors: $SERVER,; s|\"…\"|$(given ceph/cluster/admin.key)|" ;;
    */git*) edits="s,https://git.example.com,git://$SERVER," sees=$'pv\ncommitted' shares=committed ;;
    esac
}
readonly PEERS=(k8s/dummy rancher/secrets ramax.com/local-storage kvaps/loop kvaps/qemu-nbd kvaps/nbd
    ananace/git-live piersharding/gitrepo nect.com/sshflex alicloud/oss ibm/ibmc-s3fs rht/glfs-subvol
    kubernetes.io/glusterfs ceph.rook.io/rook kubernetes.io/cephfs)

# The example of PROFILE, here.
example() {
    sed "s/namespace: default/namespace: peers/; s,image: busybox,image: tests.flexvol.dev/busybox:1,
        s/^  containers:/  nodeName: node-1\n  containers:/; $edits" "$here/../../examples/profiles/${1/\//\~}.yaml"
}
# What a pod says of its volume, whatever of that there is.
content() { echo "cat $1/peer $1/file $1/token 2>/dev/null; true"; }
called() { echo "${1//[\/.]/-}"; }

# up PROFILE: installs it; the example's pod, and one with the example's PV.
up() {
    of "$1" || return
    quietly on node-1 flexvol install "$1" --plugin-dir "$PLUGINS" "${words[@]}"
    [[ -z $attaches ]] || quietly controllers "$1" "${words[@]}"
    apply < <(
        example "$1"
        script="(echo pv >/v/peer) 2>/dev/null; $(content /v)" \
            pod "$(called "$1")" "persistentVolumeClaim: {claimName: $(called "$1")-example}"
    )
}

# seen PROFILE: by the example's pod.
seen() {
    runs "$(called "$1")-example" || why "$(called "$1")-example"
    k exec "$(called "$1")-example" -- sh -c "$(content /data)"
}

# attached: how many volumes of kvaps are, by the controllers.
attached() { kube get node node-1 -o jsonpath='{.status.volumesAttached[*].name}' | grep -o kvaps/ | wc -l; }

down() {
    local examples=()
    for name in "${there[@]}"; do examples+=("$(called "$name")-example"); done
    remove pod --all --grace-period=1 &&
        remove pvc --all &&
        kube delete pv "${examples[@]}" &&
        kube delete namespace peers --wait=false &&
        on node-1 "$here/servers" stop &&
        on node-1 umount /srv
}

# Many pods at once, and few processors.
LIMIT=120 patience=100
# Nothing of this machine's own /srv.
on node-1 bash -c 'mount -t tmpfs srv /srv && mkdir /srv/local /srv/kube-volumes'
serve git sftp s3 gluster ceph
namespace peers >/dev/null
there=()
for name in "${PEERS[@]}"; do
    says "peers: $name: pods are made" "*pod/$(called "$name") created*" up "$name" && there+=("$name")
done
for name in "${there[@]}"; do
    of "$name"
    says "peers: $name: by PV and PVC" "$sees" said_by "$(called "$name")"
    says "peers: $name: as the example says" "$shares" seen "$name"
done
says 'peers: kvaps: attached by the controllers' 3 attached
says 'peers: all goes' '' quietly down
says 'peers: nothing is left' '' clean node-1
unset LIMIT patience
