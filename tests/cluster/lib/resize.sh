#!/usr/bin/env bash
# Drivers whose volumes `flexvold csi-controller` attaches, makes and grows, beside the API server.
# Sourced by the chapters csi-resize and smoke.
# shellcheck source=tests/cluster/lib/processes.sh
. "${here:?}/lib/processes.sh"
# shellcheck source=tests/cluster/lib/scripted.sh
. "$here/lib/scripted.sh"
# shellcheck source=tests/cluster/lib/storage.sh
. "$here/lib/storage.sh"
readonly LEASES=kube-system
# The driver of lib/storage.sh, as CSI knows it.
readonly DISK=disk.example.com.flex.flexvol.dev LEASE=external-resizer-disk-example-com-flex-flexvol-dev

# driver_begins: that driver, served over CSI on both nodes and beside the API server.
driver_begins() {
    local node
    for node in node-1 node-2 world; do scripted "$node" example.com/disk < <(storage_driver); done
    for node in node-1 node-2; do
        runs_on "$node" csi flexvold csi --driver example.com/disk --plugin-dir "$PLUGINS" --node-id "$node" --register
    done
    runs_on world csi flexvold csi --driver example.com/disk --plugin-dir "$CONTROLLERS" --role controller \
        --node-id world --endpoint unix:///run/csi.sock
    on node-1 flexvold manifest csi --image tests.flexvol.dev/unused --plugin-dir "$PLUGINS" example.com/disk |
        awk 'BEGIN { RS = "---\n" } /kind: "?CSIDriver/ { print "---"; print }' | kube apply --filename - >/dev/null
    for node in node-1 node-2; do eventually "${patience:?}" is_registered "$node" "$DISK"; done
}
is_registered() { kube get csinode "$1" -o jsonpath='{.spec.drivers[*].name}' | grep -qF "$2"; }

# begins: ours is at work for it, and leads.
begins() {
    at_work world ours /run/csi.sock
    eventually "$patience" is_held "$LEASE" && holder "$LEASE"
}

bound_all() { k wait --for=jsonpath='{.status.phase}'=Bound --timeout="${patience}s" pvc "$@" >/dev/null; }
driver_ends() { for each in world node-1 node-2; do ends_on "$each" csi; done; }
no_holder() { ! is_held "$LEASE"; }
not_attached() { [[ -z $(storage_attached) ]]; }
no_volumes() {
    [[ -z $(kube get pv -o json | jq -r --arg driver "$1" '.items[] | select(.spec.csi.driver == $driver)') ]]
}

# account: what ours may do and nothing else, and the directory with which a pod says who it is.
account() {
    kube apply --filename - <<YAML
apiVersion: v1
kind: ServiceAccount
metadata: {name: csi-resize, namespace: $LEASES}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: csi-resize}
rules:
- {apiGroups: [""], resources: [persistentvolumes], verbs: [list, watch, get, create, patch, delete]}
- {apiGroups: [""], resources: [persistentvolumeclaims], verbs: [list, watch, get, patch]}
- {apiGroups: [""], resources: [persistentvolumeclaims/status], verbs: [patch]}
- {apiGroups: [""], resources: [nodes], verbs: [list, watch]}
- {apiGroups: [""], resources: [events], verbs: [create, patch]}
- {apiGroups: [storage.k8s.io], resources: [storageclasses, csinodes], verbs: [list, watch]}
- {apiGroups: [storage.k8s.io], resources: [volumeattachments], verbs: [list, watch, get, patch]}
- {apiGroups: [storage.k8s.io], resources: [volumeattachments/status], verbs: [patch]}
- {apiGroups: [coordination.k8s.io], resources: [leases], verbs: [get, create, update]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: csi-resize}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: csi-resize}
subjects: [{kind: ServiceAccount, name: csi-resize, namespace: $LEASES}]
YAML
    mkdir -p -- "$CLUSTER/account"
    (umask 077 && kube --namespace "$LEASES" create token csi-resize --duration=24h >"$CLUSTER/account/token")
    cp -- "$CLUSTER/pki/ca.crt" "$CLUSTER/account/"
    echo "$LEASES" >"$CLUSTER/account/namespace"
}
no_account() {
    kube delete clusterrole,clusterrolebinding csi-resize >/dev/null
    kube --namespace "$LEASES" delete serviceaccount csi-resize >/dev/null
    rm -r -- "$CLUSTER/account"
}

# at_work PLACE NAME SOCKET: ours, for the driver there; kubelet would start it again, too.
at_work() {
    restarts_on "$1" "$2" flexvold csi-controller --endpoint "unix://$3" --server "https://$WORLD" \
        --account "$CLUSTER/account" --work attach,provision,resize
}
holder() { kube --namespace "$LEASES" get lease "$1" -o jsonpath='{.spec.holderIdentity}'; }
is_held() { [[ -n $(holder "$1") ]]; }

# class NAME DRIVER [MORE]: prints a StorageClass.
class() {
    cat <<YAML
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: $1, labels: {chapter: csi-resize}}
provisioner: $2
${3:-}
YAML
}

# wants CLAIM SIZE: asks for it; says nothing if the API server takes that.
wants() {
    k patch pvc "$1" --patch "{\"spec\": {\"resources\": {\"requests\": {\"storage\": \"$2\"}}}}" 2>&1 |
        grep -v patched
}
# about CLAIM: its size, and how far its growth is. Kubernetes has other conditions as well.
about() {
    k get pvc "$1" -o json | jq -r '.status | [.capacity.storage, .allocatedResourceStatuses.storage // "-",
        ([.conditions[]?.type | select(test("Resiz"))] | sort | join(" "))] | join(" ") | sub(" $"; "")'
}
is_about() { [[ $(about "$1") == "$2" ]]; }
# becomes CLAIM TEXT: says what it is, as soon as it is that.
becomes() {
    eventually "${patience:?}" is_about "$@"
    about "$1"
}
# looked_at POD COMMAND...: kubelet looks at a claim when it looks at its pod: when that changes.
looked_at() {
    k annotate --overwrite pod "$1" "look=$RANDOM" >/dev/null
    "${@:2}"
}
grown() { eventually "${patience:?}" looked_at "$1" is_about "$2" "$3 -" && about "$2"; }
volume_of() { k get pvc "$1" -o jsonpath='{.spec.volumeName}'; }
# noted CLAIM: the size of its volume, and what is noted on that of the size before.
noted() {
    kube get pv "$(volume_of "$1")" -o json |
        jq -r '.metadata.annotations["volume.alpha.kubernetes.io/pre-resize-capacity"] as $before |
            "\(.spec.capacity.storage) \($before // "-")"'
}
is_noted() { [[ $(noted "$1") == "$2" ]]; }
# forgets CLAIM TEXT: says what is noted, as soon as it is that.
forgets() {
    eventually "${patience:?}" is_noted "$@"
    noted "$1"
}
# larger POD MIB: the file system that it sees has more than so many.
larger() { k exec "$1" -- df -m /v | awk -v than="$2" 'NR == 2 { print ($2 > than ? "larger" : $2) }'; }
reasons() {
    k get events -o json | jq -r --arg claim "$1" '[.items[] | select(.involvedObject.name == $claim and
        (.source.component // "" | startswith("external-resizer "))).reason] | unique | join(" ")'
}
has_reasons() { [[ $(reasons "$1") == "$2" ]]; }
# tells CLAIM REASONS: what the resizer has said of it, as soon as it is that.
tells() {
    eventually "${patience:?}" has_reasons "$@"
    reasons "$1"
}
