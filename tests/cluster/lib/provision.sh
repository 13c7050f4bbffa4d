#!/usr/bin/env bash
# A driver whose volumes are provisioned, by us or by external-provisioner, beside the API server.
# Sourced by the chapter csi-provision.
# shellcheck source=tests/cluster/lib/processes.sh
. "${here:?}/lib/processes.sh"
readonly IMAGE=image.flexvol.flex.flexvol.dev LEASES=kube-system LEASE=image-flexvol-flex-flexvol-dev

driver_begins() {
    controllers image >/dev/null
    on node-1 flexvol install image --plugin-dir "$PLUGINS" >/dev/null
    runs_on world csi flexvold csi --driver flexvol/image --plugin-dir "$CONTROLLERS" --role controller \
        --node-id world --endpoint unix:///run/csi.sock
    runs_on node-1 csi flexvold csi --driver flexvol/image --plugin-dir "$PLUGINS" --node-id node-1 --register
    on node-1 flexvold manifest csi --image tests.flexvol.dev/unused --plugin-dir "$PLUGINS" flexvol/image |
        awk 'BEGIN { RS = "---\n" } /kind: "?CSIDriver/ { print "---"; print }' | kube apply --filename - >/dev/null
    eventually 30 is_registered
}
is_registered() { kube get csinode node-1 -o jsonpath='{.spec.drivers[*].name}' | grep -qF "$IMAGE"; }

# account: what ours may do and nothing else, and the directory with which a pod says who it is.
account() {
    kube apply --filename - <<YAML
apiVersion: v1
kind: ServiceAccount
metadata: {name: provisioner, namespace: $LEASES}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: csi-provision}
rules:
- {apiGroups: [""], resources: [persistentvolumes], verbs: [list, watch, get, create, patch, delete]}
- {apiGroups: [""], resources: [persistentvolumeclaims], verbs: [list, watch, get, patch]}
- {apiGroups: [""], resources: [secrets], verbs: [get]}
- {apiGroups: [""], resources: [events], verbs: [create, patch]}
- {apiGroups: [storage.k8s.io], resources: [storageclasses, volumeattachments], verbs: [list, watch]}
- {apiGroups: [coordination.k8s.io], resources: [leases], verbs: [get, create, update]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: csi-provision}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: csi-provision}
subjects: [{kind: ServiceAccount, name: provisioner, namespace: $LEASES}]
YAML
    mkdir -p -- "$CLUSTER/account"
    (umask 077 && kube --namespace "$LEASES" create token provisioner >"$CLUSTER/account/token")
    cp -- "$CLUSTER/pki/ca.crt" "$CLUSTER/account/"
    echo "$LEASES" >"$CLUSTER/account/namespace"
}
no_account() {
    kube delete clusterrole,clusterrolebinding csi-provision >/dev/null
    kube --namespace "$LEASES" delete serviceaccount provisioner >/dev/null
    rm -r -- "$CLUSTER/account"
}
ours_begin() {
    runs_on world ours flexvold csi-controller --endpoint unix:///run/csi.sock --server "https://$WORLD" \
        --account "$CLUSTER/account" --work provision
}
upstream_begins() {
    runs_on world upstream csi-provisioner --csi-address=/run/csi.sock --kubeconfig="$KUBECONFIG" \
        --leader-election --leader-election-namespace="$LEASES"
}
holder() { kube --namespace "$LEASES" get lease "$LEASE" -o jsonpath='{.spec.holderIdentity}'; }

# class NAME [MORE [PARAMETERS]]: prints a StorageClass of the driver.
class() {
    cat <<YAML
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: $1, labels: {chapter: csi-provision}}
provisioner: $IMAGE
parameters: {file: provisioned.img, size: 32Mi, format: ifBlank${3:+, $3}}
${2:-}
YAML
}

# volumes: the names of the driver's PersistentVolumes.
volumes() {
    kube get pv -o json | jq -r --arg driver "$IMAGE" '.items[] | select(.spec.csi.driver == $driver).metadata.name'
}
no_volumes() { [[ -z $(volumes) ]]; }
gone_volumes() { eventually 40 no_volumes; volumes; }

# What a provisioner has made, and what it has said, but for what differs from one to the next:
# names that are made up, times, who it was and the words. What is refused before the driver is
# asked was never "Provisioning" here.
objects_made() {
    kube get pv -o json | jq --sort-keys --arg driver "$IMAGE" '[.items[] | select(.spec.csi.driver == $driver) |
        del(.metadata.uid, .metadata.resourceVersion, .metadata.creationTimestamp, .metadata.managedFields,
            .spec.claimRef.uid, .spec.claimRef.resourceVersion, .status.lastPhaseTransitionTime,
            .spec.csi.volumeAttributes["storage.kubernetes.io/csiProvisionerIdentity"]) |
        .metadata.name = "name" | .spec.csi.volumeHandle |= sub("pvc-.*"; "name") |
        .spec.csi[]? |= (if type == "object" and .name? then .name |= sub("pvc-[0-9a-f-]{36}"; "name") else . end) |
        .metadata.annotations[]? |= sub("pvc-[0-9a-f-]{36}"; "name")] | sort_by(.spec.claimRef.name)'
    k get events -o json | jq --compact-output --arg driver "$IMAGE" '[.items[] |
        select(.involvedObject.kind == "PersistentVolumeClaim" and (.source.component // "" | startswith($driver))) |
        [.involvedObject.name, .type, .reason]] | unique[] | select(. != ["half", "Normal", "Provisioning"] and
        . != ["reserved", "Normal", "Provisioning"])'
}
