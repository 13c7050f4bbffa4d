#!/usr/bin/env bash
# What the real kubelet does: what it calls drivers with, which is what `flexvol pod up` calls them
# with, and what it makes of odd replies, which is why `flexvol check` says must.
# docs/kubelet-truth.md is the table of it. Sourced by tests/cluster/chapter.

# shellcheck source=tests/cluster/lib/scripted.sh disable=SC2154 # here is set by lib/cluster.sh
. "$here/lib/scripted.sh"
# shellcheck source=tests/cluster/lib/odd.sh
. "$here/lib/odd.sh"

namespace truth >/dev/null

# recording CAPABILITIES: a driver that writes down every call, an argument a tab, and mounts
# memory.
recording() {
    cat <<SH
#!/bin/sh
{ printf '%s\t' "\$@"; echo; } >>/run/truth.calls
device=
case \$1 in
init) echo '{"status":"Success","capabilities":$1}' && exit ;;
attach) device=/dev/truth ;;
waitforattach) device=\$2 ;;
mount | mountdevice) mkdir -p "\$2" && mount -t tmpfs tmpfs "\$2" >/dev/null 2>&1 ;;
unmount | unmountdevice) umount "\$2" >/dev/null 2>&1 ;;
isattached) echo '{"status":"Success","attached":true}' && exit ;;
esac
echo "{\"status\":\"Success\",\"device\":\"\$device\"}"
SH
}

# calls PLACE...: what was recorded there since the last time, each call once, without what kubelet
# and pods see to in their own time.
calls() {
    for place in "$@"; do on "$place" bash -c 'cat /run/truth.calls 2>/dev/null; rm -f /run/truth.calls'; done |
        grep -vE '^(init|isattached|getvolumename)' | sed 's|/run/truth-root/|/var/lib/kubelet/|g' | sort --unique
}

# rehearsed up|down: the same volumes by `flexvol pod`, from what the API server says they are.
rehearsed() {
    k get pod,pvc,secret -o yaml >"$CLUSTER/truth.yaml"
    { echo ---; kube get pv -l chapter=truth -o yaml; echo ---; kube --namespace default get secret truth -o yaml; } \
        >>"$CLUSTER/truth.yaml"
    on node-1 flexvol pod "$1" --filename "$CLUSTER/truth.yaml" --root /run/truth-root --node node-1 --plugin-dir \
        "$PLUGINS" "${@:2}" \
        2>&1
}

# compared KUBELET REHEARSED: prints where the two differ, and how many calls there were.
compared() {
    diff "$1" "$2" && echo "$(wc -l <"$1") calls are equal"
}

recording '{"attach":false}' | scripted node-1 truth/plain
recording '{"attach":true}' | scripted node-1 truth/disk
recording '{"attach":true}' | scripted world truth/disk
odd_drivers
for where in truth default; do
    kube --namespace "$where" create secret generic truth --type truth/plain --from-literal='key=a "<&>" ä' \
        --from-literal=empty= \
        --from-file=binary=<(printf '\0\1\377\n') >/dev/null
done
driver=truth
# Tenants write what they like: the API server refuses them keys of kubernetes.io/ alone.
# shellcheck disable=SC2016 # it is for drivers
awkward='"a&b": "<\"\\>", lines: "1\n2\t3", "ключ": "ä ☃ \u2028", empty: "", shell: "$(id); `id`|id",
    mount: "a,suid,-o dev", path: "../../etc/x", "kubernetes-io/readwrite": "rw", readOnly: "false"'
# shellcheck disable=SC2034 # of the pods
says 'truth: pods of every shape are made' '*created*' apply < <(
    pod plain "flexVolume: {driver: truth/plain, options: {$awkward}}"
    pod read-only 'flexVolume: {driver: truth/plain, fsType: ext4, readOnly: true}'
    spec='securityContext: {fsGroup: 2000}' pod secret 'flexVolume: {driver: truth/plain, secretRef: {name: truth}}'
    mount='subPath: a/b' pod sub-path 'flexVolume: {driver: truth/plain}'
    claim shared '{driver: truth/plain, readOnly: true, secretRef: {name: truth, namespace: default}, options: {a: b}}'
    pod shared-1 'persistentVolumeClaim: {claimName: shared}'
    pod shared-2 'persistentVolumeClaim: {claimName: shared, readOnly: true}'
    class=truth claim disk '{driver: truth/disk, fsType: xfs, options: {a: b}}'
    pod disk-1 'persistentVolumeClaim: {claimName: disk}'
    pod disk-2 'persistentVolumeClaim: {claimName: disk}'
    pod disk-inline 'flexVolume: {driver: truth/disk, options: {c: d}}'
    # Nothing says that there is anything on it yet.
    class=truth claim disk-read '{driver: truth/disk, fsType: ext4, readOnly: true}'
    pod disk-read 'persistentVolumeClaim: {claimName: disk-read, readOnly: true}'
    class=truth claim grows '{driver: truth/plain, options: {e: f}}'
    pod grows 'persistentVolumeClaim: {claimName: grows}'
    echo ---
    echo '{"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "truth"},
        "provisioner": "none", "allowVolumeExpansion": true}'
)
says 'truth: options::other_case_key: the API server refuses it in any letters' '*"truth-case" is invalid*' \
    apply < <(pod truth-case 'flexVolume: {driver: truth/plain, options: {"Kubernetes.IO/readwrite": rw}}')
shapes=(plain read-only secret sub-path shared-1 shared-2 disk-1 disk-2 disk-inline disk-read grows)
says 'truth: they run' '' runs "${shapes[@]}"
calls node-1 world >"$CLUSTER/truth.kubelet"
says 'truth: pod up brings the same up' '*11 of 11 volumes up*' rehearsed up
calls node-1 >"$CLUSTER/truth.rehearsed"
says 'truth: kubelet and pod up call with the same, byte for byte' '* calls are equal' \
    compared "$CLUSTER/truth.kubelet" "$CLUSTER/truth.rehearsed"

# The claims grow while their pods run. What grows a disk before its file system is no call of
# FlexVolume: expandvolume is in the documents alone.
growing() {
    k get pod/disk-1 pod/grows pvc/disk pvc/grows -o yaml
    echo ---
    kube get pv/truth-disk pv/truth-grows -o yaml
}
expanded() {
    growing | on node-1 flexvol pod up --expand 2Gi --filename - --root /run/truth-root --node node-1 --plugin-dir \
        "$PLUGINS" 2>&1
}
wants() {
    local claim
    for claim in disk grows; do k patch pvc "$claim" --patch \
        '{"spec": {"resources": {"requests": {"storage": "2Gi"}}}}'; done
    eventually 20 pending
    k annotate pod disk-1 grows look=now
    eventually 30 both_sized
}
pending() { [[ $(k get pvc disk grows -o 'jsonpath={.items[*].status.conditions[*].type}') == \
    'FileSystemResizePending FileSystemResizePending' ]]; }
both_sized() { [[ $(k get pvc disk grows -o 'jsonpath={.items[*].status.capacity.storage}') == '2Gi 2Gi' ]]; }
says 'truth: pod up --expand grows them' '*expandfs*' expanded
# Of two pods with one volume kubelet takes whichever it looks at first.
grown() { grep '^expand' | sed 's|/pods/[^/]*/|/pods/one/|'; }
calls node-1 | grown >"$CLUSTER/truth.rehearsed"
says 'truth: the claims grow' '' quietly wants
calls node-1 world | grown >"$CLUSTER/truth.kubelet"
says 'truth: kubelet and pod up --expand call with the same, byte for byte' '2 calls are equal' \
    compared "$CLUSTER/truth.kubelet" "$CLUSTER/truth.rehearsed"

says 'truth: pod down takes them down' '*11 of 11 volumes down*' rehearsed down
calls node-1 >"$CLUSTER/truth.rehearsed"
# Deleted while the volumes are there: pod down needs to know the pods.
says 'truth: pods go' '' remove pod "${shapes[@]}"
# Each by a call of its own, and any as often as the controller likes.
detached() {
    local -i are wanted
    are=$(on world sort --unique /run/truth.calls | grep -c ^detach || true)
    wanted=$(grep -c ^detach "$CLUSTER/truth.rehearsed")
    ((wanted > 0 && are >= wanted))
}
says 'truth: and are detached' '' eventually 20 detached
calls node-1 world >"$CLUSTER/truth.kubelet"
says 'truth: kubelet and pod down call with the same, byte for byte' '* calls are equal' \
    compared "$CLUSTER/truth.kubelet" "$CLUSTER/truth.rehearsed"

k delete pvc --all >/dev/null
kube delete pv -l chapter=truth >/dev/null
kube delete storageclass truth >/dev/null
kube --namespace default delete secret truth >/dev/null

# --- odd replies
namespace odd >/dev/null
# shellcheck disable=SC2034 # of the pods
driver=odd
odd_pods | quietly apply
odd_cases
says 'truth: odd: pods go' '' odd_gone
for place in node-1 world; do unscripted "$place" truth; done
unscripted node-1 odd
says 'truth: nothing is left' '' clean node-1
