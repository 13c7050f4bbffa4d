#!/usr/bin/env bash
# FlexVolume drivers that `flexvold csi` serves to a real kubelet as CSI drivers. Sourced by
# tests/cluster/chapter.
# shellcheck source=tests/cluster/lib/node.sh
. "${here:?}/lib/node.sh"
readonly TMPFS=tmpfs.flexvol.flex.flexvol.dev IMAGE=image.flexvol.flex.flexvol.dev

# The objects that say to Kubernetes what the drivers can; the rest of the manifest wants an image.
csi_drivers() {
    on node-1 flexvold manifest csi --image unused --plugin-dir "$PLUGINS" flexvol/tmpfs flexvol/image |
        awk 'BEGIN { RS = "---\n" } /kind: "?CSIDriver/ { print "---"; print }'
}

serves() {
    # shellcheck disable=SC2016 # on the node
    on node-1 bash -c '
        setsid flexvold csi --driver flexvol/tmpfs --driver flexvol/image --plugin-dir "$0" --node-id node-1 --register \
            </dev/null >>"$1" 2>&1 & echo $! >/run/flexvold.pid' "$PLUGINS" "$CLUSTER/log/node-1-flexvold.log"
}
# shellcheck disable=SC2016 # on the node
ends() { on node-1 bash -c "kill -$1"' "$(</run/flexvold.pid)"; while [[ -d /proc/$(</run/flexvold.pid) ]]; do sleep 0.05; done'; }

registered() { kube get csinode node-1 -o jsonpath='{.spec.drivers[*].name}' | tr ' ' '\n' | sort | paste -sd' '; }
is_registered() { [[ $(registered) == "$IMAGE $TMPFS" ]]; }
is_not() { [[ -z $(registered) ]]; }
# awaits CONDITION: says what is registered, when it is so.
awaits() { eventually 30 "$1"; registered; }

# csi DRIVER OPTIONS: a volume of a pod.
csi() { echo "csi: {driver: $1, volumeAttributes: {$2}}"; }

# persistent NAME OPTIONS: prints a PersistentVolume of the image driver, and its claim.
persistent() {
    # shellcheck disable=SC2154 # of lib/case.sh
    claim "$1" '{}' | sed "s|^  flexVolume: .*|  csi: {driver: $IMAGE, volumeHandle: \"fx1#$namespace-$1\", fsType: ext4, volumeAttributes: {$2}}|"
}

namespace csi >/dev/null
says 'csi: the drivers are installed' '*tmpfs installed*image installed*' \
    on node-1 flexvol install tmpfs image --plugin-dir "$PLUGINS" --set 'policy.imageRoots=["/var/lib/images"]'
on node-1 mkdir -p /var/lib/images
says 'csi: CSIDriver objects' "*$TMPFS created*" kube apply --filename - < <(csi_drivers)
says 'csi: flexvold begins' '' serves
says 'csi: kubelet has registered both' "$IMAGE $TMPFS" awaits is_registered

says 'csi: pods are made' '*pod/persistent created*' apply < <(
    script='stat -c %g:%a /v; echo data >/v/file && cat /v/file' spec='securityContext: {fsGroup: 2000, runAsUser: 1000}' \
        pod inline "$(csi "$TMPFS" 'size: 16Mi')"
    script='echo no >/v/file || echo refused' mount='readOnly: true' pod reader "$(csi "$TMPFS" 'size: 16Mi')"
    pod rests "$(csi "$TMPFS" 'size: 16Mi')"
    pod misspelt "$(csi "$TMPFS" 'sise: 16Mi')"
    modes=ReadWriteOnce persistent kept 'file: kept.img, format: ifBlank, size: 64Mi'
    script='echo kept >/v/file; sync; cat /v/file' pod persistent 'persistentVolumeClaim: {claimName: kept}'
)
says 'csi: inline, with fsGroup' $'2000:2777\ndata' said_by inline
says 'csi: inline, read-only' '*Read-only file system*refused' said_by reader
says 'csi: by PV and PVC' kept said_by persistent
says 'csi: a wrong option is an Event' '*unknown option "sise"*did you mean "size"*' event misspelt FailedMount
says 'csi: one rests' '' runs rests

measured() {
    kube get --raw /api/v1/nodes/node-1/proxy/stats/summary |
        jq '.pods[] | select(.podRef.name == "rests") | .volume[]? | select(.name == "v") | .capacityBytes'
}
is_measured() { [[ -n $(measured) ]]; }
capacity() { eventually 30 is_measured; measured; }
says 'csi: its size in /stats/summary' 16777216 capacity

# kubelet, and then flexvold, end with a volume in use.
killed() { kubelet_stop node-1 && kubelet_start node-1 && ends KILL && serves; }
says 'csi: both are killed' '' killed
says 'csi: kubelet has registered both again' "$IMAGE $TMPFS" awaits is_registered
# kubelet knows its pods again a moment after it has started.
says 'csi: the volume is still there' '*16384*' eval 'eventually 20 k exec rests -- true; k exec rests -- df -k /v'
says 'csi: another pod is made' '*created*' apply < <(
    script='cat /v/file' pod again 'persistentVolumeClaim: {claimName: kept}'
)
says 'csi: it reads what was kept' kept said_by again
says 'csi: the pods go' '' remove pod --all
says 'csi: its claim goes' '' remove pvc kept
says 'csi: its PV goes' '*deleted*' kube delete pv csi-kept
says 'csi: flexvold is told to end' '' ends TERM
says 'csi: kubelet knows neither' '' awaits is_not
says 'csi: the objects go' '*deleted*' kube delete csidriver "$TMPFS" "$IMAGE"
says 'csi: the drivers go' '*removed*' on node-1 flexvol uninstall tmpfs image --plugin-dir "$PLUGINS"
says 'csi: nothing is left' '' clean node-1
