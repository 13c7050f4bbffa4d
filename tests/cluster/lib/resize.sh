#!/usr/bin/env bash
# Drivers whose volumes `flexvold csi-controller` attaches, makes and grows, beside the API server.
# Sourced by the chapter csi-resize.
# shellcheck source=tests/cluster/lib/processes.sh
. "${here:?}/lib/processes.sh"
readonly LEASES=kube-system

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
