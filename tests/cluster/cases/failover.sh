#!/usr/bin/env bash
# A pod of a StatefulSet moves to the other node with its image: because its node is drained, has no
# power, starts again, or is cut off. It counts, and no count is ever written twice or lost. Sourced
# by tests/cluster/chapter.
# shellcheck source=tests/cluster/lib/node.sh
. "${here:?}/lib/node.sh"
# shellcheck source=tests/cluster/lib/images.sh
. "$here/lib/images.sh"
# shellcheck source=tests/cluster/lib/agents.sh
. "$here/lib/agents.sh"

# A pod that counts in a file of its image, on whichever node it may run; each time it says from
# where. It reads the last line, so a writer beside it, or a line that was lost, leaves a gap.
writer() {
    cat <<YAML
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db, namespace: ${namespace:?}}
spec:
  replicas: 1
  serviceName: db
  selector: {matchLabels: {app: db}}
  template:
    metadata: {labels: {app: db}}
    spec:
      terminationGracePeriodSeconds: 1
      automountServiceAccountToken: false
      dnsPolicy: Default
      affinity: {nodeAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [{weight: 1, preference: {
        matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [node-2]}]}}]}}
      containers:
      - name: c
        image: tests.flexvol.dev/busybox:1
        env: [{name: NODE, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}]
        command:
        - sh
        - -c
        - |
          while :; do
            last=\$(tail -n 1 /v/count 2>/dev/null)
            echo "\$((\${last%% *} + 1)) \$NODE" >>/v/count && sync /v/count
            sleep 0.2
          done
        readinessProbe: {exec: {command: [sh, -c, "test -s /v/count"]}, periodSeconds: 1}
        volumeMounts: [{name: v, mountPath: /v}]
      volumes:
      - {name: v, persistentVolumeClaim: {claimName: data}}
YAML
    claim data '{driver: flexvol/image, fsType: ext4, options: {file: count.img, size: 32Mi}}'
}
# where: the node of the pod that runs.
where() { k get pod db-0 -o 'jsonpath={.spec.nodeName} {.status.containerStatuses[0].ready}' 2>/dev/null; }
runs_at() { [[ $(where) == "$1 true" ]]; }
moves_to() {
    eventually "${patience:-60}" runs_at "$1"
    where
}
# again_at NODE: where it runs, once it does in another container than before.
container() { k get pod db-0 -o 'jsonpath={.status.containerStatuses[0].containerID}'; }
is_again_at() { [[ $(container) != "$before" ]] && runs_at "$1"; }
again_at() {
    eventually "${patience:-60}" is_again_at "$1"
    where
}
# counted: what is wrong with the counts so far; nothing if each is there once.
# shellcheck disable=SC2016 # awk's
counted() { k exec db-0 -- awk '$1 != NR {print "line " NR ": " $0}' /v/count | head -n 3; }
# written NODE: how many of them are of a node.
written() { k exec db-0 -- sh -c "grep -c ' $1\$' /v/count"; }
at_least() { [[ $(written "$1") -ge $2 ]]; }
# counts_still NODE: so many more there are on it after a moment, whoever may know of the pod.
counts_still() {
    # shellcheck disable=SC2016 # on the node
    on "$1" bash -c 'lines() { cat /var/lib/kubelet/pods/*/volumes/flexvol~image/*/count | wc -l; }
        before=$(lines) && sleep 1 && echo $(($(lines) - before))'
}
ready() { [[ $(kube get node "$1" -o 'jsonpath={.status.conditions[?(@.type=="Ready")].status}') == True ]]; }
unready() { ! ready "$1"; }
epoch() { of_agents get flexattachments -o 'jsonpath={.items[0].spec.epoch}'; }
tasks() { of_agents get flexdetachtasks -o 'jsonpath={range .items[*]}{.spec.reason} {.spec.holder.node}{"\n"}{end}'; }
has_tasks() { [[ $(tasks) == "$1" ]]; }
left_to_do() {
    eventually "${patience:-60}" has_tasks "$1"
    tasks
}
off() { kube taint node "$1" node.kubernetes.io/out-of-service=nodeshutdown:NoExecute; }
on_again() { kube taint node "$1" node.kubernetes.io/out-of-service-; }
forced() { k delete pod db-0 --force --grace-period=0 --wait=false 2>/dev/null; }
# hears PATTERN: why the next one waits, as soon as it is that.
hears() {
    eventually "${patience:-40}" is_told "$1"
    event_text db-0 FailedMount
}
# shellcheck disable=SC2053 # a pattern is meant
is_told() { [[ $(event_text db-0 FailedMount) == $1 ]]; }
# waits_for SECONDS: the successor does not run for so long.
waits_for() {
    local end=$((SECONDS + $1))
    while ((SECONDS < end)); do
        [[ $(where) != *true ]] || { where; return; }
        sleep 0.5
    done
}
reboot() { "$here/kill" "$1" && "$here/boot" "$1"; }
replaced() {
    of_agents rollout restart daemonset/flexvol-agent >/dev/null
    rolled_out
}
# silent SECONDS: the API server answers nobody for so long.
silent() {
    # shellcheck disable=SC2016 # in the world
    on world bash -c 'server=$(pgrep -x kube-apiserver); kill -STOP "$server"; sleep "$1"; kill -CONT "$server"' - "$1"
    eventually 60 runs_at node-1
}
counts_on() { [[ $(count) -ge $(($1 + 30)) ]]; }
count() { k exec db-0 -- sh -c 'wc -l </v/count'; }
forget() {
    k delete --wait=false pvc data >/dev/null
    kube delete --wait=false persistentvolume failover-data >/dev/null
    kube patch persistentvolume failover-data --patch '{"metadata": {"finalizers": null}}' >/dev/null
    kube get persistentvolumes --no-headers 2>/dev/null | grep failover
}

namespace failover >/dev/null
mkdir -p "$SHARED"
LIMIT=100 says 'failover: image' '' import flexvold "$CLUSTER/bin/flexvold" 1 node-1 node-2
says 'failover: drivers are installed' '' drivers
says 'failover: the manifest is applied, strictly' '*created*' kube apply --validate=strict --filename - < <(manifest)
LIMIT=90 says 'failover: an agent on each node' '*successfully rolled out' rolled_out
LIMIT=90 says 'failover: and the controller' '*successfully rolled out' \
    of_agents rollout status --timeout=60s deployment/flexvol-controller
says 'failover: a pod that counts' '*created*' apply < <(writer)
LIMIT=90 says 'failover: it runs' 'node-2 true' moves_to node-2

LIMIT=90 says 'failover: upgraded: the agents are' '*successfully rolled out' replaced
says 'failover: upgraded: it has counted' '' eventually 30 at_least node-2 20
says 'failover: upgraded: it is still held' 'db-0 node-2' locked 'db-0 node-2'

says 'failover: drained: its node is' '*drained*' kube drain node-2 --ignore-daemonsets --force --timeout=50s
LIMIT=90 says 'failover: drained: it has moved' 'node-1 true' moves_to node-1
says 'failover: drained: it goes on counting' '' eventually 30 at_least node-1 5
says 'failover: drained: nothing was lost, or written twice' '' counted
says 'failover: drained: its node is in service again' '*uncordoned' kube uncordon node-2

says 'failover: cut off: its node is' '' "$here/link" node-1 down
says 'failover: cut off: its pod is deleted by force' '*deleted*' forced
LIMIT=90 says 'failover: cut off: the next one hears who has it' \
    '*is held by pod failover/db-0 on node node-1 since*' hears '*on node node-1*'
says 'failover: cut off: and waits' '' waits_for 4
says 'failover: cut off: the one that is gone still counts' '[1-9]*' counts_still node-1
says 'failover: cut off: its node is back' '' "$here/link" node-1 up
LIMIT=200 patience=180 says 'failover: cut off: it has what it waited for' 'node-2 true' moves_to node-2
says 'failover: cut off: nothing was lost, or written twice' '' counted
LIMIT=90 says 'failover: cut off: its node has nothing left to do' '' left_to_do ''
says 'failover: nothing was taken so far' 0 epoch

says 'failover: without power: its node is cut off first' '' "$here/link" node-2 down
LIMIT=90 says 'failover: without power: that is noticed' '' eventually 80 unready node-2
says 'failover: without power: its pod is deleted by force' '*deleted*' forced
LIMIT=90 patience=60 says 'failover: without power: the next one hears why it waits' \
    '*is held by pod failover/db-0 on node node-2 since*is not ready*out-of-service*' hears '*on node node-2*'
says 'failover: without power: and does' '' waits_for 4
says 'failover: without power: the one that is gone still counts' '[1-9]*' counts_still node-2
says 'failover: without power: its node is off' '' "$here/kill" node-2
says 'failover: without power: that is said' '*tainted*' off node-2
LIMIT=200 patience=180 says 'failover: without power: it has moved' 'node-1 true' moves_to node-1
says 'failover: without power: nothing was lost, or written twice' '' counted
says 'failover: without power: it was taken' 1 epoch
says 'failover: without power: and its node has something to do' 'NodeLost node-2' left_to_do 'NodeLost node-2'
LIMIT=150 says 'failover: without power: it is on again' '' "$here/boot" node-2
LIMIT=90 says 'failover: without power: and has done it' '' left_to_do ''
says 'failover: without power: it is in service again' '*untainted*' on_again node-2

before=$(container)
LIMIT=150 says 'failover: rebooted: its node is' '' reboot node-1
LIMIT=200 patience=180 says 'failover: rebooted: it counts there again' 'node-1 true' again_at node-1
says 'failover: rebooted: nothing was lost, or written twice' '' counted
says 'failover: rebooted: nothing was taken' 1 epoch

before=$(count)
LIMIT=150 says 'failover: silent: the API server is, for six seconds' '' silent 6
says 'failover: silent: it has counted on' '' eventually 10 counts_on "$before"
says 'failover: silent: nothing was taken' 1 epoch

says 'failover: forgotten: its PersistentVolume is gone' '' finds forget
says 'failover: forgotten: its pod goes all the same' '' remove statefulset/db pod/db-0
says 'failover: nothing is held' '' locked ''
LIMIT=120 says 'failover: the manifest is removed' '*deleted*' removed
for each in node-1 node-2; do
    on "$each" flexvol uninstall image --plugin-dir "$PLUGINS" >/dev/null
    says "failover: nothing is left on $each" '' clean "$each"
done
