#!/usr/bin/env bash
# Ten faults, staged: what the pod's Event says is explained, and doctor and status on the node say
# the same. Sourced by tests/cluster/chapter. LONG=1 waits until kubelet gives up waiting for the
# volume that another node has, after two minutes: until then the node has no trace of it.

# shellcheck source=tests/cluster/lib/scripted.sh disable=SC2154 # here is set by lib/cluster.sh
. "$here/lib/scripted.sh"

namespace events >/dev/null

# explained POD [REASON]: what the text of the newest Event of that reason means.
explained() {
    patience=30 event "$1" "${2:-FailedMount}" >"$CLUSTER/event" || why "$1"
    flexvol explain-error - <"$CLUSTER/event" | unwrapped || cat "$CLUSTER/event"
}
# unwrapped: a paragraph a line.
unwrapped() { tr '\n' ' ' | tr -s ' '; }
doctor() { on "$1" flexvol doctor --no-init --kubelet-log "$CLUSTER/log/$1-kubelet.log" 2>&1 | unwrapped; }
status() {
    local node=${2:-node-1}
    on "$node" flexvol status --pod "events/$1" --kubelet-log "$CLUSTER/log/$node-kubelet.log" 2>&1 | unwrapped
}

# A server that takes every connection and never answers.
silent_server() {
    # shellcheck disable=SC2016 # for that shell
    on world bash -c 'python3 -c "
import socket, time
server = socket.create_server((\"$0\", 4711), backlog=50)
time.sleep(300)" </dev/null >/dev/null 2>&1 & echo "$!" >/run/silent.pid' "$WORLD"
}
# used UID: a process of the node's is in the volume of that pod.
used() {
    # shellcheck disable=SC2016 # for that shell
    on node-1 bash -c 'cd "/var/lib/kubelet/pods/$0/volumes/events~tmpfs/v" &&
        { sleep 300 </dev/null >/dev/null 2>&1 & } && echo "$!" >/run/user.pid' "$1"
}

says 'events: drivers are installed' '*events/git installed*' on node-1 bash -c "
    flexvol install events/tmpfs=tmpfs events/secretfiles=secretfiles events/lizardfs=lizardfs events/image=image \
        --plugin-dir $PLUGINS
    flexvol install events/git=git --set deadlines.mount=4 --plugin-dir $PLUGINS"
# It is loaded, and does not answer.
scripted node-1 events/broken <<'SH'
#!/bin/sh
case $1 in
mount) exit 1 ;;
*) echo '{"status":"Success","capabilities":{"attach":false}}' ;;
esac
SH
for place in node-1 node-2 world; do
    scripted "$place" events/attached <<'SH'
#!/bin/sh
case $1 in
mount) mount -t tmpfs tmpfs "$2" >/dev/null 2>&1 ;;
unmount) umount "$2" >/dev/null 2>&1 ;;
isattached) echo '{"status":"Success","attached":true}' && exit ;;
esac
echo '{"status":"Success"}'
SH
done
silent_server
# shellcheck disable=SC2034 # of the pods
driver=events
says 'events: pods with faults are made' '*created*' apply < <(
    echo '{"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "opaque"}, "stringData": {"key": "value"}}'
    pod option 'flexVolume: {driver: events/tmpfs, options: {sise: 1Mi}}'
    pod secret 'flexVolume: {driver: events/secretfiles, secretRef: {name: absent}}'
    pod type 'flexVolume: {driver: events/secretfiles, secretRef: {name: opaque}}'
    pod absent 'flexVolume: {driver: events/absent}'
    pod broken 'flexVolume: {driver: events/broken}'
    pod tool "flexVolume: {driver: events/lizardfs, options: {mfsmaster: $WORLD}}"
    pod hung "flexVolume: {driver: events/git, options: {repository: 'http://$WORLD:4711/x.git'}}"
    pod denied 'flexVolume: {driver: events/image, options: {file: /var/x.img, size: 16Mi}}'
    pod busy 'flexVolume: {driver: events/tmpfs}'
    modes=ReadWriteOnce claim attached '{driver: events/attached}'
    pod right-node 'persistentVolumeClaim: {claimName: attached}'
)
says 'events: two of them run' '' runs busy right-node
node=node-2 pod wrong-node 'persistentVolumeClaim: {claimName: attached}' | quietly apply
used "$(k get pod busy -o 'jsonpath={.metadata.uid}')"
k delete pod busy --wait=false >/dev/null

says 'events: wrong option' '*has an option that the driver*does not know*correct the option*' explained option
says 'events: Secret missing' '*no Secret of that name*make it there*' explained secret
says 'events: Secret of the wrong type' '*this one has another*make it again with type*' explained type
says 'events: driver missing' '*kubelet has no driver of that name*put the driver into the directory*' explained absent
says 'events: driver broken' '*printed nothing*call it by hand*flexvol call VENDOR/DRIVER mount*' explained broken
says 'events: tool missing' '*a program that the driver runs is not on this node*install the package*' explained tool
says 'events: no permission' '*policy of this node does not allow*let the admin widen it*' explained denied
says 'events: wrong node' '*another node still has the volume attached*delete the pod that uses it there*' \
    explained wrong-node FailedAttachVolume
says 'events: hung server' '*because a server does not answer*check that server*' explained hung

# kubelet has no Event of an unmount that fails: what the driver said is in its log.
busy() { grep -F 'TearDown failed' "$CLUSTER/log/node-1-kubelet.log" | grep -F 'in use by' | tail -n 1 |
    flexvol explain-error - | unwrapped; }
eventually 10 on node-1 grep -qF 'in use by' "$CLUSTER/log/node-1-kubelet.log"
says 'events: busy unmount' '*a process still uses the volume*end that process*' busy

doctor node-1 >"$CLUSTER/doctor"
doctor_says() { cat "$CLUSTER/doctor"; }
says 'events: doctor: wrong option' '*unknown option "sise": did you mean "size"?*correct the option*' doctor_says
says 'events: doctor: Secret missing' '*no Secret of that name*make it there*' doctor_says
says 'events: doctor: Secret of the wrong type' '*this one has another*make it again with type*' doctor_says
says 'events: doctor: driver missing' '*kubelet has no driver of that name*' doctor_says
says 'events: doctor: driver broken' '*pod events/broken waits*printed nothing*call it by hand*' doctor_says
says 'events: doctor: tool missing' \
    '*events~lizardfs runs mfsmount, which is not on this node*install lizardfs-client*' doctor_says
says 'events: doctor: no permission' '*is not below a directory this node allows*let the admin widen it*' doctor_says
says 'events: doctor: hung server' '*deadline of 4 s passed*check that server*' doctor_says
says 'events: doctor: busy unmount' '*is in use by sleep (pid *end that process*' doctor_says
says 'events: status: wrong option' '*not mounted: unknown option "sise"*' status option
says 'events: status: Secret missing' '*not mounted:*no Secret of that name*make it there*' status secret
says 'events: status: Secret of the wrong type' '*not mounted:*this one has another*make it again with type*' \
    status type
says 'events: status: driver missing' \
    '*not mounted:*kubelet has no driver of that name*put the driver into the directory*' \
    status absent
says 'events: status: driver broken' '*not mounted:*printed nothing*call it by hand*' status broken
says 'events: status: tool missing' '*not mounted:*mfsmount is not on this node: install*' status tool
says 'events: status: no permission' '*not mounted: /var/x.img is not below a directory this node allows*' status denied
says 'events: status: hung server' '*not mounted:*deadline of 4 s passed*' status hung
says 'events: status: busy unmount' '*alive:*is in use by sleep (pid *end it*' status busy
gives_up() { eventually 150 grep -qF 'unattached volumes=[v]' "$CLUSTER/log/node-2-kubelet.log"; }
if [[ -n ${LONG:-} ]]; then
    LIMIT=160 says 'events: wrong node: kubelet gives up' '' gives_up
    says 'events: doctor: wrong node' '*kubelet gave up waiting*FailedAttachVolume*' doctor node-2
    says 'events: status: wrong node' '*events/wrong-node*not mounted: kubelet gave up waiting*FailedAttachVolume*' \
        status wrong-node node-2
fi

# shellcheck disable=SC2016 # for that shell
on node-1 bash -c 'kill "$(</run/user.pid)"'
# shellcheck disable=SC2016 # for that shell
on world bash -c 'kill "$(</run/silent.pid)"'
says 'events: pods go' '' remove pod --all
k delete pvc --all >/dev/null
kube delete pv -l chapter=events >/dev/null
says 'events: nothing is left' '' clean node-1
for place in node-1 node-2 world; do unscripted "$place" events; done
