#!/usr/bin/env bash
# What `flexvold manifest csi` prints, applied: drivers as CSI drivers with Kubernetes' own
# sidecars, which attach, provision and grow. Sourced by tests/cluster/chapter.
# shellcheck source=tests/cluster/lib/node.sh
. "${here:?}/lib/node.sh"
# shellcheck source=tests/cluster/lib/images.sh
. "$here/lib/images.sh"
# shellcheck source=tests/cluster/lib/scripted.sh
. "$here/lib/scripted.sh"
# shellcheck source=tests/cluster/lib/storage.sh
. "$here/lib/storage.sh"
readonly IMAGE=image.flexvol.flex.flexvol.dev DISK=disk.example.com.flex.flexvol.dev

images() {
    import flexvold "$CLUSTER/bin/flexvold" 1 node-1 node-2
    for name in csi-attacher csi-provisioner csi-resizer; do import "$name" "$CLUSTER/programs/$name" 1 node-1; done
}
drivers() {
    local node
    for node in node-1 node-2; do
        on "$node" flexvol install image --plugin-dir "$PLUGINS" >/dev/null
        scripted "$node" example.com/disk < <(storage_driver)
    done
}
manifest() {
    local from=tests.flexvol.dev
    on node-1 flexvold manifest csi --plugin-dir "$PLUGINS" --image $from/flexvold:1 \
        --sidecars upstream --attacher-image $from/csi-attacher:1 --provisioner-image $from/csi-provisioner:1 \
        --resizer-image $from/csi-resizer:1 --no-inline flexvol/image example.com/disk
}
rolled_out() { kube --namespace flexvol-csi rollout status --timeout="${patience:-60}s" "$@" 2>&1 | tail -n 1; }

# registered NODE: its CSI drivers.
registered() { kube get csinode "$1" -o json | jq -r '[.spec.drivers[]?.name] | sort | join(" ")'; }
has_registered() { [[ $(registered "$1") == "$2" ]]; }
# registers NODE DRIVERS: says what is registered, as soon as it is these.
registers() {
    eventually 40 has_registered "$@"
    registered "$1"
}

# attachments: which disk is attached where, of this driver.
attachments() {
    kube get volumeattachments -o json | jq -r --arg driver "$DISK" '
        [.items[] | select(.spec.attacher == $driver) | "\(.spec.nodeName) \(.status.attached)"] | sort | join(", ")'
}
are_attached() { [[ $(attachments) == "$1" ]]; }
# attached TEXT: says what is attached, as soon as it is that.
attached() {
    eventually 40 are_attached "$1"
    attachments
}
handles() { volumes_of "$1" | jq -r .spec.csi.volumeHandle; }
volumes_of() { kube get pv -o json | jq -c --arg driver "$1" '.items[] | select(.spec.csi.driver? == $driver)'; }
sees() { k exec "$1" -- cat /v/file; }
writes() { k exec "$1" -- sh -c "echo '$2' >/v/file && sync"; }

namespace csi-deployed >/dev/null
kube cordon node-2 >/dev/null
LIMIT=200 says 'csi-deployed: images' '' images
says 'csi-deployed: a storage serves disks' '' storage_begins
says 'csi-deployed: drivers are installed' '' drivers
says 'csi-deployed: the manifest is applied, strictly' '*created*' \
    kube apply --validate=strict --filename - < <(manifest)
says 'csi-deployed: the nodes are served' '*successfully rolled out' rolled_out daemonset/flexvol-csi-node
for controller in flexvol-image example-com-disk; do
    says "csi-deployed: sidecars of $controller run" '*successfully rolled out' \
        rolled_out "deployment/flexvol-csi-$controller"
done
for each in node-1 node-2; do
    says "csi-deployed: kubelet of $each has registered both" "$DISK $IMAGE" registers "$each" "$DISK $IMAGE"
done

says 'csi-deployed: claims of StorageClasses' '*created*' apply < <(
    cat <<YAML
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: grows, labels: {chapter: ${namespace:?}}}
provisioner: $IMAGE
parameters: {file: grows.img, size: 320Mi, fsType: xfs}
allowVolumeExpansion: true
YAML
    size=320Mi asks grows grows
    for name in moves stays; do asks "$name" disk.example.com; done
)
says 'csi-deployed: are provisioned' '' bound grows moves stays
says 'csi-deployed: the handle has the name' "fx1#pvc-*" handles "$IMAGE"
says 'csi-deployed: pods are made' '*created*' apply < <(
    # shellcheck disable=SC2034 # of the pods
    spec='securityContext: {fsGroup: 2000}'
    on_claim grows grows
    script='ls -ld /v >/dev/null; echo no >/v/file || echo refused' mount='readOnly: true' on_claim reader grows
    on_claim moves-1 moves
    on_claim stays stays
    for name in "$IMAGE" "$DISK"; do
        pod "inline-${name%%.*}" "csi: {driver: $name, volumeAttributes: {file: grows.img}}"
    done
)
says 'csi-deployed: pods run' '' runs grows moves-1 stays
says 'csi-deployed: fsGroup, of a provisioned volume' 2000:2775 k exec grows -- stat -c %g:%a /v
says 'csi-deployed: fsGroup, of an attached one' 2000:2775 k exec moves-1 -- stat -c %g:%a /v
says 'csi-deployed: read-only' '*Read-only file system*refused' said_by reader

for name in image disk; do
    says "csi-deployed: --no-inline: $name" '*volume mode "Ephemeral" not supported by driver*' \
        event "inline-$name" FailedMount
done

# attach: true, on two nodes.
says 'csi-deployed: attached by external-attacher' 'node-1 true, node-1 true' attached 'node-1 true, node-1 true'
says 'csi-deployed: the first writes' '' writes moves-1 'from node-1'
says 'csi-deployed: a pod on the other node waits' '*created*' apply < <(node=node-2 on_claim moves-2 moves)
says 'csi-deployed: Event' '*Volume is already used by pod(s) moves-1' event moves-2 FailedAttachVolume
says 'csi-deployed: the first goes' '' remove pod moves-1
patience=60 says 'csi-deployed: the next has its data' 'from node-1' eval 'runs moves-2 && sees moves-2'
says 'csi-deployed: attached there' 'node-1 true, node-2 true' attached 'node-1 true, node-2 true'

# Growth, by the resizer and kubelet.
grown() { [[ $(k get pvc grows -o jsonpath='{.status.capacity.storage}') == 384Mi ]]; }
grows() {
    k patch pvc grows --patch '{"spec": {"resources": {"requests": {"storage": "384Mi"}}}}' >/dev/null
    grows_now grows grows
    eventually 60 grown
    k get pvc grows -o jsonpath='{.status.capacity.storage}'
}
measured() {
    kube get --raw /api/v1/nodes/node-1/proxy/stats/summary |
        jq '[.pods[].volume[]? | select(.pvcRef.name == "grows").capacityBytes] | max // 0 | . > 310000000'
}
is_measured() { [[ $(measured) == true ]]; }
LIMIT=90 says 'csi-deployed: the claim grows' 384Mi grows
says 'csi-deployed: and its file system, in use' '3[12]?' eval "k exec grows -- df -m /v | awk 'NR == 2 { print \$2 }'"
says 'csi-deployed: and /stats/summary' true eval 'eventually 30 is_measured; measured'

# flexvold and kubelet, with volumes in use; and the controller with all that it knew.
flexvold_on() { on "$1" pgrep -f '^/flexvold csi .*--register'; }
is_another() { [[ -n $(flexvold_on node-1) && $(flexvold_on node-1) != "$1" ]]; }
killed() {
    local before
    before=$(flexvold_on node-1)
    kubelet_stop node-1
    on node-1 kill -KILL "$before"
    kubelet_start node-1
    eventually 60 is_another "$before"
}
says 'csi-deployed: kubelet and flexvold are killed' '' killed
says 'csi-deployed: kubelet has registered both again' "$DISK $IMAGE" registers node-1 "$DISK $IMAGE"
says 'csi-deployed: the nodes are served again' '*successfully rolled out' rolled_out daemonset/flexvol-csi-node
says 'csi-deployed: volumes are still there' '' \
    eval 'eventually 30 k exec grows -- true; writes grows on && writes stays on'
says 'csi-deployed: the controller goes, with its journal' '*deleted*' \
    kube --namespace flexvol-csi delete pod --force -l app.kubernetes.io/instance=flexvol-csi-example-com-disk
says 'csi-deployed: the pods go' '' remove pod --all
says 'csi-deployed: the next controller runs' '*successfully rolled out' \
    rolled_out deployment/flexvol-csi-example-com-disk
says 'csi-deployed: detaches what it never knew' '' attached ''
says 'csi-deployed: the storage has nothing attached' '' storage_attached

says 'csi-deployed: the claims go' '' remove pvc --all
no_handles() { [[ -z $(handles "$IMAGE") ]]; }
says 'csi-deployed: with the PV of the class that deletes' '' eval "eventually 30 no_handles; handles $IMAGE"
says 'csi-deployed: and the data stays' '*/grows.img' on node-1 ls /var/lib/flexvol/images/grows.img
says 'csi-deployed: PVs of the printed class stay' $'fx1#pvc-*\nfx1#pvc-*' handles "$DISK"
remove_volumes() {
    local names
    mapfile -t names < <(volumes_of "$1" | jq -r .metadata.name)
    kube delete pv "${names[@]}" >/dev/null
    handles "$1"
}
says 'csi-deployed: and are removed' '' remove_volumes "$DISK"
LIMIT=90 says 'csi-deployed: the manifest is removed' '*deleted*' kube delete --timeout=60s --filename - < <(manifest)
says 'csi-deployed: kubelet knows neither' '' registers node-1 ''
says 'csi-deployed: nor on the other node' '' registers node-2 ''
says 'csi-deployed: the class goes' '*deleted*' kube delete storageclass grows
for each in node-1 node-2; do
    on "$each" flexvol uninstall image --plugin-dir "$PLUGINS" >/dev/null
    unscripted "$each" example.com
    says "csi-deployed: nothing is left on $each" '' clean "$each"
    says "csi-deployed: nothing is noted on $each" '' on "$each" find /var/lib/flexvol/csi -type f -path '*/volumes/*'
done
says 'csi-deployed: the storage ends' '' storage_ends
kube uncordon node-2 >/dev/null
rm -f -- "$CLUSTER"/images/{flexvold,csi-*}-1.tar
