#!/usr/bin/env bash
# Claims that grow, by `flexvold csi-controller` and kubelet, without a sidecar: those of a
# FlexVolume driver that attaches, and, where $FLEXVOL_PEER is a directory with hostpathplugin and
# csi-node-driver-registrar, those of csi-driver-host-path. Sourced by tests/cluster/chapter.
# shellcheck source=tests/cluster/lib/node.sh
. "${here:?}/lib/node.sh"
# shellcheck source=tests/cluster/lib/resize.sh
. "$here/lib/resize.sh"
readonly HOSTPATH=hostpath.csi.k8s.io PEER=${FLEXVOL_PEER:+$(realpath -- "$FLEXVOL_PEER")}
# A busy machine is slow, and nothing here is about time.
# shellcheck disable=SC2034 # of tap.sh
LIMIT=150
patience=90
failed=0
# plays NAME PATTERN COMMAND...: a case, and the ends of all logs if it fails for the first time.
plays() {
    says "csi-resize: $1" "${@:2}" && return
    failed=$((failed + 1))
    [[ $failed -gt 1 ]] || words_of world-ours world-csi node-1-csi node-2-csi node-1-hostpath node-1-registrar \
        node-1-peers
}

is_replaced() { [[ -n $(holder "$LEASE") && $(holder "$LEASE") != "$1" ]]; }

namespace csi-resize >/dev/null
plays 'a storage serves disks' '' storage_begins
plays 'a driver is served' '' driver_begins
plays 'an account that may do what ours does' '*created*' account
plays 'ours is at work' 'world_*' begins
plays 'classes' '*created*created' apply < <(
    class grows "$DISK" 'allowVolumeExpansion: true
parameters: {csi.storage.k8s.io/fstype: xfs, size: 320M}'
    class fixed "$DISK" 'parameters: {csi.storage.k8s.io/fstype: xfs, size: 320M}'
)
plays 'claims' '*created*' apply < <(
    for name in grows later killed; do size=320Mi asks "$name" grows; done
    size=320Mi asks fixed fixed
)
plays 'are bound' '' bound_all grows later killed fixed
plays 'pods' '*created*' apply < <(on_claim grows-1 grows && on_claim killed-1 killed)
plays 'run' '' runs grows-1 killed-1
plays 'the first writes' '' k exec grows-1 -- sh -c 'echo from node-1 >/v/file && sync'

# In use, by ours and then by kubelet.
plays 'more is asked for' '' finds wants grows 384Mi
plays 'the claim has grown' '384Mi -' grown grows-1 grows 384Mi
plays 'so has its file system, in use' larger larger grows-1 300
plays 'and the PersistentVolume' '384Mi -' forgets grows '384Mi -'
plays 'the Events are those of external-resizer' 'FileSystemResizeRequired Resizing' \
    tells grows 'FileSystemResizeRequired Resizing'
plays 'the data is there' 'from node-1' k exec grows-1 -- cat /v/file

# Without a pod, and then on another node.
plays 'more of what nothing uses' '' finds wants later 384Mi
plays 'it waits for a pod' '320Mi NodeResizePending FileSystemResizePending Resizing' \
    becomes later '320Mi NodeResizePending FileSystemResizePending Resizing'
plays 'whose size before is noted' '384Mi 320Mi' noted later
plays 'a pod on another node' '*created*' apply < <(node=node-2 on_claim later-1 later)
plays 'runs' '' runs later-1
plays 'and the claim has grown' '384Mi -' grown later-1 later 384Mi
plays 'with its file system' larger larger later-1 300
plays 'the first pod goes' '' remove pod grows-1
plays 'and comes on another node' '*created*' apply < <(node=node-2 on_claim grows-2 grows)
plays 'with its data' 'from node-1' eval 'runs grows-2 && k exec grows-2 -- cat /v/file'
plays 'in what has grown' larger larger grows-2 300

# What the API server refuses.
plays 'less is refused' '*field can not be less than*' wants grows 64Mi
plays 'a class that does not allow it' \
    '*the storageclass that provisions the pvc must support resize*' wants fixed 384Mi

# Killed with what is asked for in the meantime.
killed() {
    local before
    before=$(holder "$LEASE")
    kills_on world ours
    finds wants killed 384Mi
    eventually "$patience" is_replaced "$before"
}
plays 'ours is killed' '' killed
plays 'what was asked for is done' '384Mi -' grown killed-1 killed 384Mi
plays 'for it, too' larger larger killed-1 300
plays 'all pods go' '' remove pod --all
plays 'all claims go' '' remove pvc --all
plays 'with their volumes' '' eventually "$patience" no_volumes "$DISK"
plays 'the storage has nothing attached' '' eventually "$patience" not_attached

# csi-driver-host-path: its controller grows volumes, and its nodes after that.
readonly AT=/var/lib/kubelet/plugins/csi-hostpath
hostpath_begins() {
    on node-1 mkdir -p "$AT" /var/lib/csi-hostpath
    runs_on node-1 hostpath "$PEER/hostpathplugin" --drivername="$HOSTPATH" --endpoint="unix://$AT/csi.sock" \
        --nodeid=node-1 --statedir=/var/lib/csi-hostpath
    runs_on node-1 registrar "$PEER/csi-node-driver-registrar" --csi-address="$AT/csi.sock" \
        --kubelet-registration-path="$AT/csi.sock" --plugin-registration-path=/var/lib/kubelet/plugins_registry
    kube apply --filename - <<YAML >/dev/null
apiVersion: storage.k8s.io/v1
kind: CSIDriver
metadata: {name: $HOSTPATH}
spec: {podInfoOnMount: true, fsGroupPolicy: File}
YAML
    at_work node-1 peers "$AT/csi.sock"
    eventually "$patience" is_registered node-1 "$HOSTPATH"
}
hostpath_left() {
    kube get volumeattachments -o json | jq -r --arg driver "$HOSTPATH" \
        '.items[] | select(.spec.attacher == $driver).metadata.name'
    jq -r '.Volumes[]?.VolID' <(on node-1 cat /var/lib/csi-hostpath/state.json)
}
no_hostpath() { [[ -z $(hostpath_left) ]]; }
hostpath_ends() {
    local name
    for name in peers registrar hostpath; do ends_on node-1 "$name"; done
    kube delete csidriver "$HOSTPATH" >/dev/null
    on node-1 rm -r "$AT" /var/lib/csi-hostpath
}
if [[ -n $PEER ]]; then
    plays 'host-path is served' '' hostpath_begins
    # And who works for it is killed as soon as it is asked for something.
    ends_at_once() { "$@" && eventually "$patience" kills_on node-1 peers; }
    plays 'host-path: a class and a claim' '*created*created' ends_at_once apply < <(
        class hostpath "$HOSTPATH" 'allowVolumeExpansion: true'
        size=320Mi asks hostpath hostpath
    )
    plays 'host-path: is bound' '' bound_all hostpath
    plays 'host-path: a pod' '*created*' ends_at_once apply < <(on_claim hostpath-1 hostpath)
    plays 'host-path: runs' '' runs hostpath-1
    plays 'host-path: more is asked for' '' ends_at_once finds wants hostpath 384Mi
    plays 'host-path: the claim has grown' '384Mi -' grown hostpath-1 hostpath 384Mi
    plays 'host-path: and the PersistentVolume' '384Mi -' forgets hostpath '384Mi -'
    plays 'host-path: Events' 'FileSystemResizeRequired Resizing' \
        tells hostpath 'FileSystemResizeRequired Resizing'
    # More than it takes, then less.
    plays 'host-path: more than it has' '' finds wants hostpath 64Ti
    plays 'host-path: its words' '*rpc error: code = OutOfRange*' event hostpath VolumeResizeFailed
    plays 'host-path: it never can' '384Mi ControllerResizeInfeasible ControllerResizeError Resizing' \
        becomes hostpath '384Mi ControllerResizeInfeasible ControllerResizeError Resizing'
    plays 'host-path: less is asked for' '' finds wants hostpath 448Mi
    plays 'host-path: and is there' '448Mi -' grown hostpath-1 hostpath 448Mi
    plays 'host-path: it is attached, and made' $'csi-*\n?*' hostpath_left
    plays 'host-path: the pod goes' '' ends_at_once remove --wait=false pod --all
    plays 'host-path: and the claim' '' ends_at_once remove --wait=false pvc --all
    plays 'host-path: with the volume' '' eventually "$patience" no_volumes "$HOSTPATH"
    plays 'host-path: of which nothing is left' '' eval 'eventually 90 no_hostpath; hostpath_left'
    plays 'host-path ends' '' hostpath_ends
else
    skips 'csi-resize: host-path' 'FLEXVOL_PEER names no directory with hostpathplugin and csi-node-driver-registrar'
fi

plays 'ours ends' '' ends_on world ours
plays 'and gives the lease back' '' eventually "$patience" no_holder
plays 'the account goes' '' no_account
plays 'the driver ends' '' driver_ends
plays 'classes go' '*deleted*' kube delete storageclass -l chapter=csi-resize
kube delete csidriver "$DISK" >/dev/null
for each in node-1 node-2; do
    unscripted "$each" example.com
    plays "nothing is left on $each" '' clean "$each"
done
unscripted world example.com
plays 'the storage ends' '' storage_ends
