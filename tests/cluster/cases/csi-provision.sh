#!/usr/bin/env bash
# `flexvold csi-controller` makes and deletes volumes of StorageClasses, without a sidecar; the same
# claims before external-provisioner make the same objects. Sourced by tests/cluster/chapter.
# shellcheck source=tests/cluster/lib/node.sh
. "${here:?}/lib/node.sh"
# shellcheck source=tests/cluster/lib/provision.sh
. "$here/lib/provision.sh"

# renewed: who holds the lease, after it was renewed twice: who waits has looked at it meanwhile.
renewal() { kube --namespace "$LEASES" get lease "$LEASE" -o jsonpath='{.spec.renewTime}'; }
is_renewed() { [[ $(renewal) != "$1" ]]; }
renewed() {
    for _ in 1 2; do eventually 10 is_renewed "$(renewal)"; done
    holder
}

# The claims that both provisioners serve, and those that both refuse.
readonly SERVED=(plain retained secret many) REFUSED=(reserved half block)
served() {
    asks plain provision-plain
    asks retained provision-retained
    metadata='annotations: {example.com/secret: noted}' asks secret provision-secret
    modes='ReadWriteOnce, ReadWriteMany' asks many provision-plain
}
refused() {
    asks reserved provision-reserved
    asks half provision-half
    asks block provision-plain 'volumeMode: Block'
}
classes() {
    local prefix=csi.storage.k8s.io
    class provision-plain 'mountOptions: [noatime]' "$prefix/fstype: ext4"
    class provision-retained 'reclaimPolicy: Retain'
    class provision-first 'volumeBindingMode: WaitForFirstConsumer'
    class provision-reserved '' "$prefix/unknown: x"
    class provision-half '' "$prefix/node-stage-secret-name: x"
    class provision-secret '' "$prefix/provisioner-secret-name: of-driver,
        $prefix/provisioner-secret-namespace: '\${pvc.namespace}',
        $prefix/controller-publish-secret-name: '\${pvc.name}',
        $prefix/controller-publish-secret-namespace: '\${pvc.namespace}',
        $prefix/node-stage-secret-name: '\${pv.name}', $prefix/node-stage-secret-namespace: '\${pvc.namespace}',
        $prefix/controller-expand-secret-name: 'a-\${pvc.name}',
        $prefix/controller-expand-secret-namespace: kube-system,
        $prefix/secret-name: \"\${pvc.annotations['example.com/secret']}\",
        $prefix/secret-namespace: '\${pvc.namespace}'"
}
play() {
    namespace=$1 apply < <(served; refused) >/dev/null
    bound "${SERVED[@]}"
    for name in "${SERVED[@]}"; do event "$name" ProvisioningSucceeded >/dev/null; done
    for name in "${REFUSED[@]}"; do event "$name" ProvisioningFailed >/dev/null; done
}
# made FILE: what has been made, when what is refused has been refused.
made() {
    play "${namespace:?}" && objects_made >"$CLUSTER/$1"
    k get pvc -o json | jq -r '[.items[] | "\(.metadata.name) \(.status.phase)"] | sort | join(", ")'
}
policy() { kube get pv "$1" -o jsonpath='{.spec.persistentVolumeReclaimPolicy}'; }
# cleared: all claims have gone, and their volumes; those that are retained are removed by hand.
retained() { [[ $(volumes | wc -l) -eq 1 ]]; }
cleared() {
    remove pvc --all
    eventually 40 retained
    for name in $(volumes); do
        [[ $(policy "$name") != Retain ]] || kube delete pv "$name" >/dev/null
    done
    k delete events --all >/dev/null
    gone_volumes
}
readonly PHASES='block Pending, half Pending, many Bound, plain Bound, reserved Pending, retained Bound, secret Bound'

namespace csi-provision >/dev/null
kube cordon node-2 >/dev/null
says 'csi-provision: a driver is served' '' driver_begins
says 'csi-provision: classes' "$(printf '*%.0screated' {1..6})" apply < <(classes)
says 'csi-provision: a Secret of the driver' '*created*' \
    k create secret generic of-driver --from-literal=password=hidden-word

says 'csi-provision: external-provisioner begins' '' upstream_begins
says 'csi-provision: upstream: claims' "$PHASES" made upstream
says 'csi-provision: upstream: all is cleared' '' cleared
says 'csi-provision: an account that may do what ours does' '*created*' account
says 'csi-provision: ours begins, beside it' '' ours_begin
says 'csi-provision: and waits for the lease' "$(holder)" renewed
says 'csi-provision: external-provisioner is killed' '' ends_on world upstream KILL
leads() { [[ $(holder) == world_* ]]; }
LIMIT=60 says 'csi-provision: ours leads' 'world_*' eval 'eventually 30 leads; holder'
says 'csi-provision: ours: claims' "$PHASES" made ours
says 'csi-provision: the objects are the same' '' diff "$CLUSTER/upstream" "$CLUSTER/ours"
says 'csi-provision: ours: all is cleared' '' cleared

says 'csi-provision: a claim that waits for its pod' '*created*' apply < <(
    asks first provision-first
    asks clone provision-plain 'dataSource: {kind: PersistentVolumeClaim, name: first}'
    asks restored provision-plain 'dataSource: {apiGroup: snapshot.storage.k8s.io, kind: VolumeSnapshot, name: s}'
)
says 'csi-provision: cloning is refused' 'cannot clone the volume of claim "first"*' event clone ProvisioningFailed
says 'csi-provision: a snapshot is refused' 'cannot restore VolumeSnapshot "s"*' event restored ProvisioningFailed
says 'csi-provision: nothing is made before' '' volumes
says 'csi-provision: the pod' '*created*' apply < <(node='' pod first 'persistentVolumeClaim: {claimName: first}')
says 'csi-provision: runs where the scheduler wants it' node-1 \
    eval 'runs first; k get pod first -o jsonpath={.spec.nodeName}'
says 'csi-provision: and writes' '' k exec first -- sh -c 'echo here >/v/file'
says 'csi-provision: the pod goes' '' remove pod first
says 'csi-provision: the claims go' '' remove pvc --all
says 'csi-provision: with their volumes' '' gone_volumes

# Killed in the middle, and once more with claims that go while nothing leads.
readonly MANY=40
crowd() { for each in $(seq "$MANY"); do asks "crowd-$each" provision-plain; done; }
some_bound() { [[ $(k get pvc -o json | jq '[.items[] | select(.status.phase == "Bound")] | length') -ge $1 ]]; }
killed() {
    apply < <(crowd) >/dev/null
    eventually 20 some_bound 3
    ends_on world ours KILL
    ours_begin
}
counts() { k get pvc -o json | jq -r '[.items[].status.phase] | group_by(.) | map("\(length) \(.[0])") | join(" ")'; }
LIMIT=90 says 'csi-provision: ours is killed among many claims' '' killed
LIMIT=90 says 'csi-provision: all are bound' "$MANY Bound" eval "eventually 60 some_bound $MANY; counts"
says 'csi-provision: each has one volume' "$MANY" eval 'volumes | wc -l'
deleted_and_killed() {
    k delete pvc --all --wait=false >/dev/null
    ends_on world ours KILL
    ours_begin
}
says 'csi-provision: all are deleted, and ours is killed' '' deleted_and_killed
LIMIT=90 says 'csi-provision: nothing is left' '' eval 'eventually 60 no_volumes; volumes'

told() { cat "$CLUSTER"/log/{world,node-1}-{ours,csi}.log 2>/dev/null; }
never_told() { ! told | grep -F "$1"; }
says 'csi-provision: a word that was told' '*provisioned*' told
says 'csi-provision: the Secret was not' '' never_told hidden-word
says 'csi-provision: ours ends' '' ends_on world ours
says 'csi-provision: and has given the lease back' '' holder
says 'csi-provision: the account goes' '' no_account
says 'csi-provision: the driver ends' '' eval 'ends_on world csi; ends_on node-1 csi'
says 'csi-provision: classes go' '*deleted*' kube delete storageclass -l chapter=csi-provision
kube delete csidriver "$IMAGE" >/dev/null
on node-1 flexvol uninstall image --plugin-dir "$PLUGINS" >/dev/null
on world flexvol uninstall image --plugin-dir "$CONTROLLERS" >/dev/null
says 'csi-provision: nothing is left on node-1' '' clean node-1
kube uncordon node-2 >/dev/null
