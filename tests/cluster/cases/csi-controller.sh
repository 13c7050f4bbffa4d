#!/usr/bin/env bash
# Volumes of CSI made, attached, grown, detached and deleted by `flexvold csi-controller` as
# `manifest csi` prints it, without a sidecar: on two nodes, with two of it of which one is at work,
# under kills. Sourced by tests/cluster/chapter.
# shellcheck source=tests/cluster/lib/node.sh
. "${here:?}/lib/node.sh"
# shellcheck source=tests/cluster/lib/images.sh
. "$here/lib/images.sh"
# shellcheck source=tests/cluster/lib/scripted.sh
. "$here/lib/scripted.sh"
# shellcheck source=tests/cluster/lib/storage.sh
. "$here/lib/storage.sh"
# shellcheck source=tests/cluster/lib/resize.sh
. "$here/lib/resize.sh"
readonly DISK=disk.example.com.flex.flexvol.dev CONTROLLER=flexvol-csi-example-com-disk
readonly LEASE=external-attacher-leader-disk-example-com-flex-flexvol-dev
# Of provisioning, and of growing.
readonly PROVISIONS=disk-example-com-flex-flexvol-dev GROWS=external-resizer-disk-example-com-flex-flexvol-dev
readonly GUARD=external-attacher/disk-example-com-flex-flexvol-dev

drivers() {
    local node
    for node in node-1 node-2; do scripted "$node" example.com/disk < <(storage_driver); done
}
manifest() {
    on node-1 flexvold manifest csi --plugin-dir "$PLUGINS" --image tests.flexvol.dev/flexvold:1 example.com/disk
}
in_namespace() { kube --namespace flexvol-csi "$@"; }
rolled_out() { in_namespace rollout status --timeout=60s "$@" 2>&1 | tail -n 1; }

is_registered() { [[ $(kube get csinode "$1" -o jsonpath='{.spec.drivers[*].name}') == "$DISK" ]]; }

# disk NAME: prints a PersistentVolume of the driver's, and its claim.
disk() {
    local csi="{driver: $DISK, volumeHandle: \"fx1#${namespace:?}-$1\", fsType: ext4, volumeAttributes: {}}"
    modes=ReadWriteOnce size=32Mi claim "$1" '{}' | sed "s|^  flexVolume: .*|  csi: $csi|"
}
user() { pod "$1" "persistentVolumeClaim: {claimName: $2}"; }

# about NAME FILTER: of the VolumeAttachment of that disk.
about() {
    kube get volumeattachments -o json | jq -r --arg volume "$namespace-$1" \
        ".items[] | select(.spec.source.persistentVolumeName == \$volume) | $2"
}
is_attached() { [[ $(about "$1" '"\(.spec.nodeName) \(.status.attached)"') == "$2" ]]; }
# attached NAME TEXT: says where it is attached, as soon as it is that.
attached() {
    eventually "${patience:-40}" is_attached "$@"
    about "$1" '"\(.spec.nodeName) \(.status.attached)"'
}
has_error() { [[ -n $(about "$1" '.status.attachError.message // empty') ]]; }
attach_error() {
    eventually 40 has_error "$1"
    about "$1" .status.attachError.message
}
finalizers() { kube get pv "$namespace-$1" -o json | jq -r '.metadata.finalizers | join(" ")'; }

# of_lease FIELD: what the lease says; lease=… ($LEASE) says which.
of_lease() { in_namespace get lease "${lease:-$LEASE}" -o jsonpath="{.spec.$1}"; }
# holder: the process that is at work, `<pod>_<its own>`.
holder() { of_lease holderIdentity; }
# leads [NOT]: one is at work, another than that: the next in the same pod is another, too.
leads() {
    local holder
    holder=$(holder)
    [[ -n $holder && $holder != "${1:-}" ]]
}
# in_time RENEWED: it was taken 15 s after another saw that renewal, which looks every 2 s.
in_time() {
    python3 - "$1" "$(of_lease acquireTime)" <<'PYTHON'
import datetime, sys
renewed, acquired = (datetime.datetime.fromisoformat(time.rstrip("Z")) for time in sys.argv[1:])
took = (acquired - renewed).total_seconds()
print("yes" if 15 <= took <= 20 else f"{took} s")
PYTHON
}
# leaves: who is at work ends at once, as by kill -9, and its pod begins once more.
leaves() {
    local pod node
    pod=$(holder) pod=${pod%%_*}
    node=$(in_namespace get pod "$pod" -o jsonpath='{.spec.nodeName}')
    # shellcheck disable=SC2016 # on the node
    on "$node" bash -c 'for pid in $(pgrep -f "^/flexvold csi-controller "); do
        [[ $(tr "\0" "\n" </proc/$pid/environ) != *"HOSTNAME=$0"* ]] || kill -KILL $pid; done' "$pod"
}

# api_server_again: it ends at once, and is started as it was.
api_server_again() {
    # shellcheck disable=SC2016 # in the world
    on world bash -c '. "$0/lib/cluster.sh" && cd -- "$CLUSTER/pki" && pid=$(</run/kube-apiserver.pid) &&
        mapfile -d "" -t words </proc/$pid/cmdline && kill -KILL "$pid" &&
        while [[ -d /proc/$pid ]]; do sleep 0.05; done && sleep 2 && daemon kube-apiserver "${words[@]}"' "$here"
    eventually 40 kube get --raw /readyz
}

namespace csi-controller >/dev/null
LIMIT=100 says 'csi-controller: image' '' import flexvold "$CLUSTER/bin/flexvold" 1 node-1 node-2
says 'csi-controller: a storage serves disks' '' storage_begins
says 'csi-controller: drivers are installed' '' drivers
says 'csi-controller: the manifest has no sidecar' 'tests.flexvol.dev/flexvold:1' \
    eval "manifest | sed -n 's/^ *\(- \)\?image: \"\(.*\)\"/\2/p' | sort -u"
says 'csi-controller: and is applied, strictly' '*created*' kube apply --validate=strict --filename - < <(manifest)
says 'csi-controller: two of it' '*scaled' in_namespace scale --replicas=2 "deployment/$CONTROLLER"
says 'csi-controller: the nodes are served' '*successfully rolled out' rolled_out daemonset/flexvol-csi-node
says 'csi-controller: both run' '*successfully rolled out' rolled_out "deployment/$CONTROLLER"
# A pod that comes earlier waits for long.
for each in node-1 node-2; do says "csi-controller: $each is registered" '' eventually 40 is_registered "$each"; done
says 'csi-controller: claims and pods are made' '*created*' apply < <(
    for name in moves held stays; do disk "$name"; done
    user moves-1 moves
    user stays-1 stays
)
says 'csi-controller: pods run' '' runs moves-1 stays-1
says 'csi-controller: attached' 'node-1 true' attached moves 'node-1 true'
says 'csi-controller: guarded as by external-attacher' "$GUARD node-1" about moves \
    '"\(.metadata.finalizers | join(" ")) \(.metadata.annotations["csi.alpha.kubernetes.io/node-id"])"'
says 'csi-controller: and the PersistentVolume' "*$GUARD*" finalizers moves
says 'csi-controller: the first writes' '' k exec moves-1 -- sh -c 'echo from node-1 >/v/file && sync'

# An error of the storage's, in its words, until it is over.
says 'csi-controller: a disk is held elsewhere' '' eval "echo node-9 >'$STORAGE/$namespace-held.node'"
says 'csi-controller: a pod wants it, another moves' '*created*' apply < <(
    user held-1 held
    node=node-2 user moves-2 moves
)
says 'csi-controller: its words' "*rpc error: code = *is attached to node-9" attach_error held
says 'csi-controller: and as an Event' '*is attached to node-9*' event held-1 FailedAttachVolume
says 'csi-controller: it is free' '' rm "$STORAGE/$namespace-held.node"

# From node to node, while the one at work is killed.
first=$(holder)
says 'csi-controller: the one at work is killed' '' leaves
renewed=$(of_lease renewTime)
says 'csi-controller: the first pod goes' '' remove pod moves-1
says 'csi-controller: another is at work' '' eventually 30 leads "$first"
says 'csi-controller: within the time of the lease' yes in_time "$renewed"
patience=60 says 'csi-controller: the next has its data' 'from node-1' \
    eval 'runs moves-2 && k exec moves-2 -- cat /v/file'
says 'csi-controller: attached there, and nowhere else' 'node-2 true' attached moves 'node-2 true'
patience=60 says 'csi-controller: what failed is attached' '' runs held-1
says 'csi-controller: and has no error' null about held .status.attachError

# kubelet and flexvold of a node, then the API server, with a volume on its way.
killed() {
    kubelet_stop node-1
    on node-1 pgrep -f '^/flexvold csi .*--register' | on node-1 xargs kill -KILL
    kubelet_start node-1
}
says 'csi-controller: kubelet and flexvold of a node are killed' '' killed
says 'csi-controller: a pod goes, another comes' '' remove --wait=false pod moves-2
says 'csi-controller: there' '*created*' apply < <(user moves-3 moves)
LIMIT=90 says 'csi-controller: the API server is started again' '' api_server_again
LIMIT=90 patience=80 says 'csi-controller: the data is there' 'from node-1' \
    eval 'runs moves-3 && k exec moves-3 -- cat /v/file'
says 'csi-controller: attached' 'node-1 true' attached moves 'node-1 true'
says 'csi-controller: one is at work' '' eventually 30 leads

# The whole life of a volume, and each time the one is killed that has just been asked.
# killed_at LEASE COMMAND...: who leads by that lease is killed as soon as the command has ended.
renewal() { in_namespace get lease "$1" -o jsonpath='{.spec.holderIdentity} {.spec.renewTime}'; }
is_renewed() { [[ $(renewal "$1") != "$2" ]]; }
killed_at() {
    lease=$1 eventually 60 leads
    eventually 60 is_renewed "$1" "$(renewal "$1")"
    "${@:2}" >/dev/null
    lease=$1 leaves
}
life_class() {
    class life "$DISK" 'allowVolumeExpansion: true
parameters: {csi.storage.k8s.io/fstype: xfs, size: 320M}'
}
goes() { remove --wait=false "$1" "$2"; }
patience=90
# shellcheck disable=SC2034 # of tap.sh
LIMIT=150
says 'csi-controller: a class' '*created*' apply < <(life_class)
says 'csi-controller: life: a claim, and who provisions is killed' '' \
    killed_at "$PROVISIONS" apply < <(size=320Mi asks life life)
says 'csi-controller: life: it is bound' '' awaited --for=jsonpath='{.status.phase}'=Bound pvc/life
life=$(volume_of life)
says 'csi-controller: life: a pod, and who attaches is killed' '' killed_at "$LEASE" apply < <(on_claim life-1 life)
says 'csi-controller: life: it runs' '' runs life-1
says 'csi-controller: life: it writes' '' k exec life-1 -- sh -c 'echo from node-1 >/v/file && sync'
says 'csi-controller: life: more is asked for, and who grows is killed' '' killed_at "$GROWS" wants life 384Mi
is_grown() { [[ $(k get pvc life -o jsonpath='{.status.capacity.storage}') == 384Mi ]]; }
says 'csi-controller: life: it grows' '' eventually "$patience" looked_at life-1 is_grown
says 'csi-controller: life: and its file system' larger larger life-1 300
says 'csi-controller: life: the pod goes, and who detaches is killed' '' killed_at "$LEASE" goes pod life-1
says 'csi-controller: life: a pod on the other node' '*created*' apply < <(node=node-2 on_claim life-2 life)
says 'csi-controller: life: has the data' 'from node-1' eval 'runs life-2 && k exec life-2 -- cat /v/file'
says 'csi-controller: life: in what has grown' larger larger life-2 300
says 'csi-controller: life: the pod goes' '' remove pod life-2
says 'csi-controller: life: and the claim, and who deletes is killed' '' killed_at "$PROVISIONS" goes pvc life
life_left() {
    kube get pv --ignore-not-found -o name "$life"
    k get pvc --ignore-not-found -o name life
    kube get volumeattachments -o json | jq -r --arg volume "$life" \
        '.items[] | select(.spec.source.persistentVolumeName == $volume).metadata.name'
    storage_attached | finds grep -F "$life"
}
no_life() { [[ -z $(life_left) ]]; }
says 'csi-controller: life: no volume, no VolumeAttachment is left' '' eval 'eventually 90 no_life; life_left'
says 'csi-controller: life: the class goes' '*deleted*' kube delete storageclass life
unset patience LIMIT

# Nothing is left: PersistentVolumes that were deleted first are released by the last detach.
says 'csi-controller: volumes are deleted while in use' '*-moves*' \
    kube delete pv --wait=false "$namespace-moves" "$namespace-held" "$namespace-stays"
says 'csi-controller: pods and claims go' '' eval 'remove pod --all && remove pvc --all'
no_leader() { [[ -z $(holder) ]]; }
no_volumes() { [[ -z $(kube get pv -l chapter="$namespace" -o name) ]]; }
no_attachments() { [[ -z $(about moves .)$(about held .)$(about stays .) ]]; }
says 'csi-controller: no VolumeAttachment' '' eventually 40 no_attachments
says 'csi-controller: no PersistentVolume, no finalizer' '' eventually 30 no_volumes
says 'csi-controller: the storage has nothing attached' '' storage_attached
says 'csi-controller: both are told to end' '*scaled' in_namespace scale --replicas=0 "deployment/$CONTROLLER"
says 'csi-controller: and the lease is given back' '' eventually 30 no_leader
LIMIT=90 says 'csi-controller: the manifest is removed' '*deleted*' kube delete --timeout=60s --filename - < <(manifest)
for each in node-1 node-2; do
    unscripted "$each" example.com
    says "csi-controller: nothing is left on $each" '' clean "$each"
done
says 'csi-controller: the storage ends' '' storage_ends
rm -f -- "$CLUSTER/images/flexvold-1.tar"
