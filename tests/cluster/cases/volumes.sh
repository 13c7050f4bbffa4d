#!/usr/bin/env bash
# shellcheck disable=SC2154,SC2034,SC2016 # set or read by others
# Every driver that this kernel can serve, as pods use it. Sourced by tests/cluster/chapter.
# shellcheck source=tests/cluster/lib/drivers.sh
. "$here/lib/drivers.sh"

# Each is a row of lib/drivers.sh. It has at once, on node-1:
#   NAME-user    an inline volume, of a user with an fsGroup, who writes and reads
#   NAME-rest    a PV whose Secret is of another namespace, and a subPath of it; it rests, is measured, and grows
#   NAME-other   an inline volume, which may not use that Secret
# and, when both have written:
#   NAME-ro      a volume that is only read, on the other node if that has the same storage
readonly DRIVERS=(tmpfs bind overlay ext4 xfs btrfs qcow2 secretfiles exec git sshfs s3 rclone webdav glusterfs cephfs)

# appear NAME: on node-1, when its server is there.
appear() {
    describe "$1"
    [[ -z $server ]] || served "$server"
    quietly set_up node-1
    kube apply --filename - < <(
        opens "$1" volumes
        opens "$1-elsewhere" elsewhere
        script="stat -c %g:%a /v; echo user >/v/user; cat /v/$file" \
            spec='securityContext: {fsGroup: 2000, runAsUser: 1000}' \
            pod "$1-user" "flexVolume: $(flex "name: $1")"
        size=${grows:+${grows% *}Mi} class=grows claim "$1" "$(flex "name: $1-elsewhere, namespace: elsewhere")"
        script="echo rest >/part/rest; trap 'exit 0' TERM; sleep 3600 & wait" \
            mounts="{name: v, mountPath: /part, subPath: $part}" pod "$1-rest" "persistentVolumeClaim: {claimName: $1}"
        [[ -z $secret ]] || pod "$1-other" "flexVolume: $(flex "name: $1-elsewhere")"
    )
}

# rests NAME: what its resting pod finds by both of its paths, and the size of its volume, in KiB.
rests() {
    runs "$1-rest" || why "$1-rest"
    k exec "$1-rest" -- sh -c 'cat "/v/$0/rest" /part/rest 2>/dev/null || cat "/v/$0" /part; df -k /v' "$part" |
        awk '/^Filesystem/ { sizes = 1; next } !sizes { print } NF > 4 { size = $(NF - 4) } END { print size }'
}

# measures NAME: the same size, as kubelet tells it.
measures() {
    kube get --raw /api/v1/nodes/node-1/proxy/stats/summary | jq --arg pod "$1-rest" '
        .pods[] | select(.podRef.name == $pod) | .volume[]? | select(.name == "v") | .capacityBytes / 1024'
}
some() { [[ -n $("$@") ]]; }
# capacity NAME: when it was measured, if ever.
capacity() {
    [[ -z $measured ]] || eventually 20 some measures "$1"
    measures "$1"
}

# wants NAME MIB: its claim, from now on.
wants() { k patch pvc "$1" --type json --patch "$(jq -n --arg size "${2}Mi" '
    [{op: "replace", path: "/spec/resources/requests/storage", value: $size}]')"; }

# written NAME: what has become of that. What can grow begins to.
declare -A sizes
written() {
    describe "$1"
    says "volumes: $1: inline, of a user with an fsGroup" "$root"$'\n'"$wrote" said_by "$1-user"
    says "volumes: $1: by PV and PVC, at the same time, and a subPath" "$found"$'\n[0-9]*' rests "$1"
    sizes[$1]=${last##*$'\n'}
    says "volumes: $1: $([[ -n $measured ]] && echo its || echo no) size in /stats/summary" \
        "${measured:+${sizes[$1]}}" capacity "$1"
    [[ -z $secret ]] ||
        says "volumes: $1: no Secret of another namespace" "*\"$1-elsewhere\" not found*" event "$1-other" FailedMount
    [[ -z $grows ]] || says "volumes: $1: its claim wants more" '*patched' wants "$1" "${grows#* }"
}

# reader: where the volume is read that was described.
reader() { [[ -n $server ]] && echo node-2 || echo node-1; }

# begin_reading NAME: prints the pod that does.
begin_reading() {
    describe "$1"
    [[ -z $server ]] || quietly set_up node-2
    node=$(reader) pod "$1-ro" "flexVolume: $(flex "name: $1" 'readOnly: true')"
}

# only_reads NAME: what the pod reads, what it hears when it writes, and how the node has the
# volume: kubelet alone would keep the pod from writing.
only_reads() {
    runs "$1-ro" || why "$1-ro"
    k exec "$1-ro" -- sh -c "exec 2>&1; cat </dev/null $reads; echo ro >/v/ro; true"
    on "$(reader)" findmnt --noheadings --output VFS-OPTIONS -- \
        "/var/lib/kubelet/pods/$(k get pod "$1-ro" -o jsonpath='{.metadata.uid}')/volumes/${driver/\//\~}/v"
}

# grown NAME MIB: the claim is so large, and so is the volume, while its pod runs.
grown() {
    grows_now "$1" "$1-rest"
    k wait --for=jsonpath='{.status.capacity.storage}'="$2Mi" --timeout=30s pvc "$1" >/dev/null
    [[ $(rests "$1" | tail -n 1) -gt ${sizes[$1]} ]] && echo larger
}

# refuses_to_grow NAME: why.
refuses_to_grow() {
    grows_now "$1" "$1-rest"
    event "$1-rest" VolumeResizeFailed
}

# Whether what runs here may grow an ext4 that is mounted: CAP_SYS_RESOURCE.
may_grow() { (($(on node-1 awk '/^CapEff/ { print "0x" $2 }' /proc/self/status) & 1 << 24)); }

# read_and_grown NAME
read_and_grown() {
    describe "$1"
    says "volumes: $1: only read${server:+, on another node}" "$sees"$'*Read-only file system\nro,*' only_reads "$1"
    if [[ $1 == ext4 ]] && ! may_grow; then
        says "volumes: $1: why it does not grow" '*run flexvol with CAP_SYS_RESOURCE*' refuses_to_grow "$1"
    elif [[ -n $grows ]]; then
        says "volumes: $1: grows with its claim, in use" larger grown "$1" "${grows#* }"
    fi
}

# The volumes of webdav open for users that their node knows.
prepare() {
    on node-1 bash -ec '
        getent passwd 1000 >/dev/null || echo "user:x:1000:1000::/:/bin/false" >>/etc/passwd
        mkdir -p "$0"/{lower,exec/a}
        chmod 1777 "$0/exec/a"
        echo below >"$0/lower/file"' "$ROOTS" &&
        kube apply --filename - <<<'{apiVersion: storage.k8s.io/v1, kind: StorageClass, metadata: {name: grows},
        provisioner: flexvol.dev/none, allowVolumeExpansion: true}'
}

finish() {
    remove pod --all &&
        remove pvc --all &&
        kube delete pv --selector chapter=volumes &&
        kube delete namespace volumes elsewhere --wait=false &&
        kube delete storageclass grows &&
        on node-1 "$here/servers" stop
}

# Many pods at once, and few processors.
LIMIT=120 patience=100
serve git sshd s3 webdav gluster ceph
namespace elsewhere >/dev/null
namespace volumes >/dev/null
says 'volumes: what they need is there' '' quietly prepare
there=()
for name in "${DRIVERS[@]}"; do
    says "volumes: $name: pods are made" '*-rest created*' appear "$name" && there+=("$name")
done
for name in "${there[@]}"; do written "$name"; done
readers() { for name in "${there[@]}"; do begin_reading "$name"; done; }
says 'volumes: pods that only read are made' "*${there[-1]}-ro created*" apply < <(readers)
for name in "${there[@]}"; do read_and_grown "$name"; done
says 'volumes: all ends' '' quietly finish
says 'volumes: nothing is left' '' clean node-1
says 'volumes: nothing is left on the other node' '' clean node-2
unset LIMIT patience
