#!/usr/bin/env bash
# shellcheck disable=SC2016,SC2034 # an inner shell expands, and chapters use what is set
# What the chapters are written with: pods, claims and drivers of a live cluster. Sourced by
# tests/cluster/play.

# Where kubelet and the controller manager look for drivers.
readonly PLUGINS=/usr/libexec/kubernetes/kubelet-plugins/volume/exec CONTROLLERS=/run/volumeplugins

# kube WORD...: kubectl, whose time limits are multiplied as all others.
kube() {
    local word words=()
    for word; do
        [[ ! $word =~ ^--timeout=([0-9]+)s$ ]] || word=--timeout=$((BASH_REMATCH[1] * PACE))s
        words+=("$word")
    done
    enter world kubectl "${words[@]}"
}
on() { enter "$@"; }

# controllers DRIVER... [OPTION...]: installs them where the controllers look for drivers.
controllers() { on world flexvol install --plugin-dir "$CONTROLLERS" "$@"; }

# namespace NAME: a new one, in which all that follows is, with the account that every pod has.
namespace() {
    namespace=$1
    kube create namespace "$1"
    eventually 20 kube --namespace "$1" get serviceaccount default
}

# k WORD...: kubectl in the namespace of the chapter.
k() { kube --namespace "$namespace" "$@"; }

# apply: the objects on standard input.
apply() { k apply --filename - "$@"; }

# pod NAME VOLUME: prints a pod with one volume at /v; VOLUME is a YAML flow mapping without a name.
# What else it is, these say:
#   script=…     what its container runs, once; `said_by` shows what it writes to
#                /dev/termination-log. Default: to rest.
#   node=…       where it runs (node-1)
#   container=…  more of the container: "securityContext: {runAsUser: 1000}"
#   spec=…       more of the pod: "securityContext: {fsGroup: 2000}"
#   mount=…      more of the mount: "readOnly: true"
#   mounts=…     another mount: "{name: v, mountPath: /part, subPath: directory}"
pod() {
    cat <<YAML
---
apiVersion: v1
kind: Pod
metadata: {name: $1, namespace: $namespace, labels: {chapter: $namespace, driver: "${driver:+${driver##*/}}"}}
spec:
  nodeName: ${node-node-1}
  terminationGracePeriodSeconds: 1
  automountServiceAccountToken: false
  restartPolicy: Never
  dnsPolicy: Default
  ${spec:-}
  containers:
  - name: c
    image: tests.flexvol.dev/busybox:1
    ${script:+command: [sh, -c, $(jq -Rs . <<<"exec >/dev/termination-log 2>&1; $script")]}
    volumeMounts: [{name: v, mountPath: /v${mount:+, $mount}}${mounts:+, $mounts}]
    ${container:-}
  volumes:
  - {name: v, $2}
YAML
}

# on_claim POD CLAIM: prints a pod with that claim's volume.
on_claim() { pod "$1" "persistentVolumeClaim: {claimName: $2}"; }

# replicas NAME COUNT VOLUME: prints a Deployment of such pods, all on one node. available NAME
# COUNT: waits until so many of them run.
replicas() {
    cat <<YAML
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: $1, namespace: $namespace}
spec:
  replicas: $2
  selector: {matchLabels: {app: $1}}
  template:
    metadata: {labels: {app: $1}}
    spec:
      nodeName: ${node-node-1}
      terminationGracePeriodSeconds: 1
      automountServiceAccountToken: false
      dnsPolicy: Default
      containers: [{name: c, image: tests.flexvol.dev/busybox:1, volumeMounts: [{name: v, mountPath: /v}]}]
      volumes:
      - {name: v, $3}
YAML
}
available() { awaited --for=jsonpath='{.status.availableReplicas}'="$2" "deployment/$1"; }

# claim NAME FLEX: prints a PersistentVolume of that flexVolume (a YAML flow mapping) and the claim
# it is bound to. size=… (1Gi) and modes=… (ReadWriteMany) say more.
claim() {
    cat <<YAML
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: $namespace-$1, labels: {chapter: $namespace}}
spec:
  capacity: {storage: ${size:-1Gi}}
  accessModes: [${modes:-ReadWriteMany}]
  persistentVolumeReclaimPolicy: Retain
  storageClassName: ${class-none}
  claimRef: {namespace: $namespace, name: $1}
  flexVolume: $2
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: $1, namespace: $namespace, labels: {chapter: $namespace}}
spec:
  storageClassName: ${class-none}
  volumeName: $namespace-$1
  accessModes: [${modes:-ReadWriteMany}]
  resources: {requests: {storage: ${size:-1Gi}}}
YAML
}

# asks NAME CLASS [MORE]: prints a claim that waits for a volume of that class. size=… (32Mi),
# modes=… (ReadWriteOnce) and metadata=… say more.
asks() {
    cat <<YAML
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: $1, namespace: $namespace${metadata:+, $metadata}}
spec:
  storageClassName: $2
  accessModes: [${modes:-ReadWriteOnce}]
  resources: {requests: {storage: ${size:-32Mi}}}
  ${3-}
YAML
}

# runs POD..., ended POD...: waits until they do, or have. kubectl's own log is none of the answer.
runs() { awaited --for=condition=Ready pod "$@"; }
ended() { awaited --for=jsonpath='{.status.containerStatuses[0].state.terminated}' pod "$@"; }
awaited() {
    k wait --timeout="${patience:-40}s" "$@" 2>&1 >/dev/null | grep -v '^[IWE][0-9]'
    return "${PIPESTATUS[0]}"
}

# said_by POD: what its script has written.
said_by() {
    ended "$1" || { why "$1"; return 1; }
    k get pod "$1" -o jsonpath='{.status.containerStatuses[0].state.terminated.message}'
}

# why POD: what keeps it, in kubelet's own words.
why() { k get events --field-selector "involvedObject.name=$1,type=Warning" \
    -o 'jsonpath={range .items[*]}{.reason}: {.message}{"\n"}{end}'; }

# event POD REASON: the text of its newest Warning of that reason, once there is one.
event() {
    eventually "${patience:-40}" has_event "$@"
    event_text "$@"
}
event_text() { k get events --field-selector "involvedObject.name=$1,reason=$2" --sort-by .lastTimestamp \
    -o 'jsonpath={.items[-1:].message}'; }
# Not while kubelet waits for the claim that came with the pod.
has_event() {
    local text
    text=$(event_text "$@")
    [[ -n $text && $text != *'PVC is not bound'* ]]
}

# grows_now CLAIM POD: the controllers have done their part, and kubelet does its. It looks at a
# claim when it looks at its pod: when that changes, or once a minute.
grows_now() {
    eventually 20 is_pending "$1"
    k annotate pod "$2" look=now >/dev/null
}
is_pending() { k get pvc "$1" -o jsonpath='{.status.conditions[*].type}' | grep -q FileSystemResizePending; }

# remove KIND/NAME...: and waits until it is gone.
remove() { k delete --timeout="${patience:-60}s" "$@" >/dev/null; }

# left NODE: what is left of pods that are gone: mounts, directories, records, devices, processes
# and their groups.
left() {
    on "$1" bash -s "$CLUSTER/$1" <<'SCRIPT'
        findmnt --noheadings --raw --output TARGET |
            grep -E "^/var/lib/kubelet/(pods/.*/volumes/[^/]*~[^/]*/[^k]|plugins/kubernetes.io/flexvolume/)" |
            grep -v "/volumes/kubernetes.io~"
        find /var/lib/kubelet/pods -mindepth 1 -maxdepth 1
        find /run/flexvol -mindepth 2 ! -path "*/log/*" ! -name "*.jsonl*" 2>/dev/null
        losetup --noheadings --raw --output NAME,BACK-FILE | grep -F "$1/"
        pgrep -af "/var/lib/kubelet/pods/|/run/flexvol/"
        find /sys/fs/cgroup -mindepth 2 -path "*/flexvol/*" -type d
SCRIPT
}
nothing_left() { [[ -z $(left "$1") ]]; }
# clean NODE: says what is left, after some time for it to go.
clean() {
    eventually 30 nothing_left "$1"
    left "$1" || true
}
