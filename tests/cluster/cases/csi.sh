#!/usr/bin/env bash
# FlexVolume drivers that `flexvold csi` serves to a real kubelet as CSI drivers. Sourced by
# tests/cluster/chapter.
# shellcheck source=tests/cluster/lib/node.sh
. "${here:?}/lib/node.sh"
# shellcheck source=tests/cluster/lib/scripted.sh
. "$here/lib/scripted.sh"
# shellcheck source=tests/cluster/lib/alike.sh
. "$here/lib/alike.sh"
readonly DRIVERS=(flexvol/bind flexvol/image flexvol/secretfiles flexvol/tmpfs example.com/group)
readonly TMPFS=tmpfs.flexvol.flex.flexvol.dev IMAGE=image.flexvol.flex.flexvol.dev
readonly GROUP=group.example.com.flex.flexvol.dev
readonly NAMES="bind.flexvol.flex.flexvol.dev $GROUP $IMAGE secretfiles.flexvol.flex.flexvol.dev $TMPFS"

# The objects that say to Kubernetes what the drivers can; the rest of the manifest wants an image.
csi_drivers() {
    on node-1 flexvold manifest csi --image tests.flexvol.dev/unused --plugin-dir "$PLUGINS" "${DRIVERS[@]}" |
        awk 'BEGIN { RS = "---\n" } /kind: "?CSIDriver/ { print "---"; print }'
}

# One that sees to the group of the pod itself, and notes what it is told.
group_driver() {
    cat <<'SH'
#!/bin/sh
case $1 in
init) echo '{"status":"Success","capabilities":{"attach":false,"fsGroup":false,"requiresFSResize":false}}' ;;
mount)
    echo "$3" >>/run/group.log
    gid=$(echo "$3" | sed -n 's/.*"kubernetes.io\/mounterArgs.FsGroup":"\([0-9]*\)".*/\1/p')
    mount -t tmpfs -o "mode=2770,gid=${gid:-0}" group "$2" && echo '{"status":"Success"}'
    ;;
unmount) umount "$2" && echo '{"status":"Success"}' ;;
*) echo '{"status":"Not supported"}' ;;
esac
SH
}

serves() {
    # shellcheck disable=SC2016 # on the node
    on node-1 bash -c '
        setsid flexvold csi --plugin-dir "$0" --node-id node-1 --register "${@:2}" </dev/null >>"$1" 2>&1 &
        echo $! >/run/flexvold.pid' "$PLUGINS" "$CLUSTER/log/node-1-flexvold.log" "${DRIVERS[@]/#/--driver=}"
}
# shellcheck disable=SC2016 # on the node
ends() {
    on node-1 bash -c "kill -$1"' "$(</run/flexvold.pid)"
        while [[ -d /proc/$(</run/flexvold.pid) ]]; do sleep 0.05; done'
}

registered() { kube get csinode node-1 -o jsonpath='{.spec.drivers[*].name}' | tr ' ' '\n' | sort | paste -sd' '; }
is_registered() { [[ $(registered) == "$NAMES" ]]; }
is_not() { [[ -z $(registered) ]]; }
# awaits CONDITION: says what is registered, when it is so.
awaits() { eventually 30 "$1"; registered; }

# csi DRIVER OPTIONS: a volume of a pod.
csi() { echo "csi: {driver: $1, volumeAttributes: {${2:-}}}"; }

# persistent NAME OPTIONS: prints a PersistentVolume of the image driver, and its claim.
persistent() {
    # shellcheck disable=SC2154 # of lib/case.sh
    local csi="{driver: $IMAGE, volumeHandle: \"fx1#$namespace-$1\", fsType: ext4, volumeAttributes: {$2}}"
    claim "$1" '{}' | sed "s|^  flexVolume: .*|  csi: $csi|"
}

namespace csi >/dev/null
says 'csi: the drivers are installed' '*tmpfs installed*secretfiles installed*' install_alike
scripted node-1 example.com/group < <(group_driver)
says 'csi: CSIDriver objects' "*$TMPFS created*" kube apply --filename - < <(csi_drivers)
says 'csi: flexvold begins' '' serves
says 'csi: kubelet has registered them' "$NAMES" awaits is_registered

says 'csi: pods are made' '*pod/persistent created*' apply < <(
    script='stat -c %g:%a /v; echo data >/v/file && cat /v/file' \
        spec='securityContext: {fsGroup: 2000, runAsUser: 1000}' pod inline "$(csi "$TMPFS" 'size: 16Mi')"
    script='echo no >/v/file || echo refused' mount='readOnly: true' pod reader "$(csi "$TMPFS" 'size: 16Mi')"
    pod rests "$(csi "$TMPFS" 'size: 16Mi')"
    script='stat -c %g:%a /v' spec='securityContext: {fsGroup: 2000}' pod told "$(csi "$GROUP")"
    pod misspelt "$(csi "$TMPFS" 'sise: 16Mi')"
    modes=ReadWriteOnce persistent kept 'file: kept.img, format: ifBlank, size: 64Mi'
    script='echo kept >/v/file; sync; cat /v/file' pod persistent 'persistentVolumeClaim: {claimName: kept}'
)
says 'csi: inline, with fsGroup' $'2000:2777\ndata' said_by inline
says 'csi: inline, read-only' '*Read-only file system*refused' said_by reader
says 'csi: a driver that is told the group' 2000:2770 said_by told
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

# other_twin: a pod of the same name, with a volume of the same name.
other_twin() {
    kube create namespace csi-two >/dev/null
    eventually 20 kube --namespace csi-two get serviceaccount default
    namespace=csi-two pod twin "$(csi "$TMPFS")" | kube apply --filename - >/dev/null
    kube --namespace csi-two wait --for=condition=Ready --timeout=40s pod twin >/dev/null
}

# kubelet, and then flexvold, end with a volume in use.
killed() { kubelet_stop node-1 && kubelet_start node-1 && ends KILL && serves; }
says 'csi: both are killed' '' killed
says 'csi: kubelet has registered them again' "$NAMES" awaits is_registered
# kubelet knows its pods again a moment after it has started.
says 'csi: the volume is still there' '*16384*' eval 'eventually 20 k exec rests -- true; k exec rests -- df -k /v'
says 'csi: another pod is made' '*created*' apply < <(
    script='cat /v/file' pod again 'persistentVolumeClaim: {claimName: kept}'
)
says 'csi: it reads what was kept' kept said_by again

# --- the same volumes by FlexVolume and by CSI
says 'csi: alike: pods are made' '*created*' apply < <(pods_alike)
says 'csi: alike: owner, mode and size' $'/v 7:8 751\nrw,*tmpfs rw,*size=3072k*mode=751*' alike owner
says 'csi: alike: mount flags' $'/v 0:0 777\nrw,nosuid,nodev,noexec,noatime tmpfs *' alike flags
says 'csi: alike: read-only' $'/v 0:0 777\nro,*tmpfs *' alike reader
says 'csi: alike: fsGroup' $'/v 0:2000 2777\nrw,*tmpfs *' alike group
says 'csi: alike: a Secret in files' $'/v 0:0 755\n/v/file 0:0 *\nsecret*ro,*' alike secret
says 'csi: alike: a directory of the node' $'/v 0:0 755\n/v/file 0:0 660\ntext\nrw,*' alike bound
says 'csi: alike: xfs in a file' $'/v 0:2000 2775\nrw,*xfs rw,*' alike disk
says 'csi: alike: Event of an unknown option' '*unknown option "sise"*' alike_event option
says 'csi: alike: Event of a wrong value' '*size*nonsense*' alike_event value
says 'csi: alike: Event of what the admin forbids' '*/etc is not below a directory this node allows*' \
    alike_event forbidden
says 'csi: alike: Event of a key that is missing' '*Secret*' alike_event keyless
# What is not alike: docs/csi.md names these.
says 'csi: not alike: Event of a Secret that is missing' \
    'flex: *get secret csi/absent*csi: fetching NodePublishSecretRef csi/absent failed*' alike_event absent
says "csi: not alike: a Secret of another type: FlexVolume" '*cannot get secret of type flexvol/secretfiles*' \
    event flex-typed FailedMount
says 'csi: not alike: a Secret of another type: CSI' '*secret*' said_by csi-typed
says "csi: not alike: a key of Kubernetes' own: FlexVolume" '*Invalid value*kubernetes.io*' apply < <(
    pod flex-reserved 'flexVolume: {driver: flexvol/tmpfs, options: {kubernetes.io/fsType: xfs}}'
)

# --- tenants
says 'csi: tenants: pods are made' '*created*' apply < <(
    pod reserved "$(csi "$TMPFS" 'kubernetes.io/secret/key: eA==')"
    pod pretends "$(csi "$GROUP" 'csi.storage.k8s.io/pod.namespace: other, csi.storage.k8s.io/ephemeral: "false"')"
    modes=ReadWriteOnce persistent forged 'file: kept.img' | sed "s|fx1#[^\"]*|csi-$(printf '7%.0s' {1..64})|"
    pod forged 'persistentVolumeClaim: {claimName: forged}'
    pod twin "$(csi "$TMPFS")"
)
says "csi: tenants: a key of Kubernetes' own" '*attribute "kubernetes.io/secret/key" is Kubernetes*' \
    event reserved FailedMount
says 'csi: tenants: who pretends runs' '' runs pretends
says 'csi: tenants: and is who it is' '*"kubernetes.io/pod.name":"pretends","kubernetes.io/pod.namespace":"csi"*' \
    on node-1 grep pretends /run/group.log
says 'csi: tenants: without podInfoOnMount' '*patched' \
    kube patch csidriver "$GROUP" --type merge --patch '{"spec": {"podInfoOnMount": false}}'
says 'csi: tenants: another pretends' '*created' apply < <(
    pod lies "$(csi "$GROUP" 'csi.storage.k8s.io/pod.namespace: other, csi.storage.k8s.io/ephemeral: "true"')"
)
says 'csi: tenants: and is refused' '*not kubelet that says so: set podInfoOnMount*' event lies FailedMount
says 'csi: tenants: a PV with the handle of a volume of a pod' '*no such volume: write fx1#*' event forged FailedMount
says 'csi: tenants: one has written' '' eval 'runs twin && k exec twin -- sh -c "echo one >/v/file"'
says 'csi: tenants: another namespace, with equal names' '' other_twin
says 'csi: tenants: has a volume of its own' two \
    kube --namespace csi-two exec twin -- sh -c 'ls -A /v; echo two >/v/file; cat /v/file'
says 'csi: tenants: and goes' '*deleted*' kube delete namespace csi-two
says 'csi: tenants: the first keeps its own' one k exec twin -- cat /v/file

says 'csi: the pods go' '' remove pod --all
says 'csi: the claims go' '' remove pvc --all
says 'csi: the PVs go' '*deleted*' kube delete pv csi-kept csi-forged
says 'csi: flexvold is told to end' '' ends TERM
says 'csi: kubelet knows none' '' awaits is_not
# shellcheck disable=SC2086 # they are words
says 'csi: the objects go' '*deleted*' kube delete csidriver $NAMES
says 'csi: the drivers go' '*removed*' on node-1 flexvol uninstall tmpfs image bind secretfiles --plugin-dir "$PLUGINS"
unscripted node-1 example.com
says 'csi: nothing is left' '' clean node-1
