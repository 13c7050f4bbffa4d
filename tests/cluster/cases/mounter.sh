#!/usr/bin/env bash
# Mount pods: a node that has no sshfs, rclone and mount.davfs gets them from a pod, as `flexvold
# manifest mounter` prints it. Sourced by tests/cluster/chapter.
# shellcheck source=tests/cluster/lib/node.sh
. "${here:?}/lib/node.sh"
# shellcheck source=tests/cluster/lib/images.sh
. "$here/lib/images.sh"
# shellcheck source=tests/cluster/lib/drivers.sh
. "$here/lib/drivers.sh"
readonly SERVED=(sshfs rclone webdav) PROGRAMS=(/usr/bin/sshfs /usr/bin/rclone /usr/sbin/mount.davfs)
readonly FILES=/var/lib/kubelet/plugin-containers

# Whatever has them open already goes on.
hide() {
    local program
    for program in "${PROGRAMS[@]}"; do on node-1 mount --bind /dev/null "$program" || return; done
}
show() { on node-1 umount "${PROGRAMS[@]}"; }
drivers() {
    local name
    for name in "${SERVED[@]}"; do
        describe "$name"
        set_up node-1
    done
}
manifest() {
    on node-1 flexvold manifest mounter --image tests.flexvol.dev/mounter:1 --grace 5 \
        --plugin flexvol/sshfs --plugin flexvol/rclone --plugin flexvol/webdav
}
pods() { kube --namespace flexvol-mounter "$@"; }
# kubectl follows no rollout that waits for deletions.
ready() { pods wait --for=jsonpath='{.status.numberReady}'=2 --timeout=60s daemonset/flexvol-mounter; }
registered() { on node-1 jq -r .podName "$FILES/flexvol~sshfs.json"; }
own() { pods get pods --field-selector spec.nodeName=node-1 -o 'jsonpath={.items[*].metadata.name}'; }
is_registered() { [[ $(registered) == "$(own)" ]]; }
# user DRIVER: a pod that writes to such a volume, and rests.
user() {
    describe "$1"
    opens "$1" "${namespace:?}"
    script="echo from-$1 >/v/$1; sleep 3600" pod "$1" "flexVolume: $(flex "name: $1")"
}
users() {
    local name
    for name in "${SERVED[@]}"; do user "$name"; done
}
read_back() {
    # Its script may just have begun.
    eventually 10 k exec "$1" -- test -s "/v/$1" && k exec "$1" -- cat "/v/$1"
}
# spoil HOW: the registration, as somebody else would leave it.
spoil() {
    # shellcheck disable=SC2016 # on the node
    on node-1 bash -c 'cd "$1" && cp -p flexvol~sshfs.json /run/registration && case $2 in
        torn) truncate -s 20 flexvol~sshfs.json ;;
        forged) chown 65534 flexvol~sshfs.json ;;
        open) chmod 666 flexvol~sshfs.json ;;
        esac' bash "$FILES" "$1"
}
restore() { on node-1 cp -p /run/registration "$FILES/flexvol~sshfs.json"; }
written() { runs "$1" && read_back "$1"; }
# in_pod: whether sshfs runs in another process namespace than the node's.
in_pod() {
    # shellcheck disable=SC2016 # on the node
    on node-1 bash -c 'for pid in $(pgrep -x sshfs); do
        [[ $(readlink "/proc/$pid/ns/pid") == $(readlink /proc/self/ns/pid) ]] && echo node || echo pod; done | sort -u'
}
# another NAME: one more pod with a volume of sshfs.
another() {
    describe sshfs
    pod "$1" "flexVolume: $(flex 'name: sshfs')"
}
left_there() { on node-1 ls -A "$FILES"; }
nothing_there() { [[ -z $(left_there) ]]; }

# plain: a pod that brings the programs and no process 1 of ours: it sleeps.
plain() {
    cat <<YAML
apiVersion: v1
kind: Pod
metadata: {name: plain, namespace: default}
spec:
  nodeName: node-1
  hostNetwork: true
  terminationGracePeriodSeconds: 0
  automountServiceAccountToken: false
  containers:
  - name: tools
    image: tests.flexvol.dev/mounter:1
    command: [sleep, "3600"]
    securityContext: {privileged: true}
    volumeMounts:
    - {name: kubelet, mountPath: /var/lib/kubelet, mountPropagation: Bidirectional}
    - {name: run, mountPath: /run/flexvol, mountPropagation: HostToContainer}
    - {name: scratch, mountPath: /var/lib/flexvol/scratch, mountPropagation: HostToContainer}
  volumes:
  - {name: kubelet, hostPath: {path: /var/lib/kubelet}}
  - {name: run, hostPath: {path: /run/flexvol, type: DirectoryOrCreate}}
  - {name: scratch, hostPath: {path: /var/lib/flexvol/scratch, type: DirectoryOrCreate}}
YAML
}
uid() { kube get pod plain -o 'jsonpath={.metadata.uid}'; }
registration() {
    echo "{\"podNamespace\":\"default\",\"podName\":\"plain\",\"podUID\":\"$(uid)\",\"containerName\":\"tools\"}"
}
register() {
    local name
    for name in "${SERVED[@]}"; do
        # shellcheck disable=SC2016 # on the node
        on node-1 bash -c 'umask 077 && cat >"$1"' bash "$FILES/flexvol~$name.json" < <(registration) || return
    done
}
agent_starts() {
    on node-1 bash -c 'setsid flexvold agent --node node-1 </dev/null >/run/agent.log 2>&1 & echo $! >/run/agent.pid'
    eventually 10 on node-1 test -S /run/flexvol/agent.sock
}
# shellcheck disable=SC2016 # on the node
agent_ends() { on node-1 bash -c 'kill "$(</run/agent.pid)"'; }
# overhead: milliseconds that a program takes longer than on the node, by containerd: a median.
overhead() {
    on node-1 python3 - "$(registration)" <<'PYTHON'
import json, socket, statistics, struct, subprocess, sys, time
at = json.loads(sys.argv[1])
order = {"program": "true", "within": 10000}
request = {"v": 1, "method": "exec", "pod": at["podUID"], "at": at, "params": order}
frame = json.dumps(request).encode()
def there():
    agent = socket.socket(socket.AF_UNIX)
    agent.connect("/run/flexvol/agent.sock")
    agent.sendall(struct.pack(">I", len(frame)) + frame)
    length = struct.unpack(">I", agent.recv(4, socket.MSG_WAITALL))[0]
    assert json.loads(agent.recv(length, socket.MSG_WAITALL))["ok"]["status"] == 0
def here():
    subprocess.run(["true"], check=True)
def median(work):
    times = []
    for _ in range(31):
        begun = time.monotonic()
        work()
        times.append(time.monotonic() - begun)
    return statistics.median(times) * 1000
print(round(median(there) - median(here)))
PYTHON
}
small_overhead() {
    local took
    took=$(overhead) || return
    echo "# mounter: a program by containerd takes $took ms longer" >&3
    [[ $took -le 60 ]] || echo "$took ms"
}

namespace mounter >/dev/null
serve sshd webdav
LIMIT=200 says 'mounter: an image with their programs' '' import mounter "$CLUSTER/bin/flexvold" 1 node-1 node-2
LIMIT=100 says 'mounter: servers' '' eval 'served sshd && served webdav'
says 'mounter: drivers are installed' '' quietly drivers
says 'mounter: the node has none of their programs' '' hide
says 'mounter: the manifest is applied, strictly' '*created*' kube apply --validate=strict --filename - < <(manifest)
LIMIT=90 says 'mounter: a mount pod on each node' '*condition met' ready
says 'mounter: it has registered' '' eventually 20 is_registered
says 'mounter: pods with volumes' '*created*' apply < <(users)
for each in "${SERVED[@]}"; do
    LIMIT=60 says "mounter: $each: is written and read" "from-$each" written "$each"
done
says 'mounter: sshfs runs in the pod alone' pod in_pod
says 'mounter: a torn registration' '' spoil torn
says 'mounter: a pod wants a volume' '*created*' apply < <(another torn)
says 'mounter: and hears why it has none' '*mounterFallback*it is no registration*' event torn FailedMount
says 'mounter: it is whole' '' restore
says 'mounter: one of somebody else' '' spoil forged
says 'mounter: a pod wants a volume of that' '*created*' apply < <(another forged)
says 'mounter: and hears whose it must be' '*mounterFallback*chown root*' event forged FailedMount
says 'mounter: it is root-owned' '' restore
LIMIT=60 says 'mounter: both have their volumes' '' runs torn forged
says 'mounter: no registration' '' on node-1 rm "$FILES/flexvol~sshfs.json"
says 'mounter: a pod wants a volume of the node' '*created*' apply < <(another gone)
says 'mounter: which has no sshfs' '*sshfs is not on this node*' event gone FailedMount
LIMIT=60 says 'mounter: the pod registers again' '' eventually 40 is_registered
LIMIT=60 says 'mounter: and serves it' '' runs gone
says 'mounter: all end' '' remove pod --all
LIMIT=90 says 'mounter: the manifest is removed' '*deleted*' kube delete --timeout=60s --filename - < <(manifest)
says 'mounter: and so are its registrations' '' eval 'eventually 20 nothing_there; left_there'
says 'mounter: nothing is left' '' clean node-1
says 'mounter: a pod that only has programs' '*created*' kube apply --filename - < <(plain)
LIMIT=40 says 'mounter: it runs' '*condition met' kube wait --for=condition=Ready --timeout=30s pod/plain
says 'mounter: somebody registers it' '' register
says 'mounter: an agent on the node' '' agent_starts
says 'mounter: pods with volumes by the runtime' '*created*' apply < <(users)
for each in "${SERVED[@]}"; do
    LIMIT=60 says "mounter: $each by the runtime: is written and read" "from-$each" written "$each"
done
says 'mounter: by the runtime sshfs runs in the pod alone' pod in_pod
LIMIT=60 says 'mounter: a program by the runtime takes at most 60 ms longer' '' small_overhead 3>&1
says 'mounter: they end, too' '' remove pod --all
agent_ends
kube delete pod plain --now >/dev/null
says 'mounter: by the runtime nothing is left' '' eval 'clean node-1; on node-1 ls -A /run/flexvol/exec'
on node-1 bash -c "rm $FILES/*.json"
says 'mounter: the node has its programs' '' show
on node-1 "$here/servers" stop
on node-1 flexvol uninstall sshfs rclone webdav --plugin-dir "$PLUGINS" >/dev/null
