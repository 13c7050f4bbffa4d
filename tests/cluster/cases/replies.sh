#!/usr/bin/env bash
# shellcheck disable=SC2016,SC2046,SC2053 # an inner shell expands; a word each; a pattern
# What the real kubelet and the controllers do with odd replies to the verbs other than mount, and
# what else they do to a driver: why `flexvol check` says must. src/kit/check/cases.txt cites these
# cases by name, and docs/kubelet-truth.md tells what came of them. Sourced by
# tests/cluster/chapter. LONG=1 waits ten minutes for the time limit of waitforattach.

# shellcheck source=tests/cluster/lib/scripted.sh disable=SC2154 # here is set by lib/cluster.sh
. "$here/lib/scripted.sh"
# shellcheck source=tests/cluster/lib/node.sh
. "$here/lib/node.sh"
# shellcheck source=tests/cluster/lib/replies.sh
. "$here/lib/replies.sh"

namespace replies >/dev/null
# shellcheck disable=SC2034 # of the pods
driver=replies
flex() { echo "flexVolume: {driver: replies/$1${2:+, $2}}"; }
those() { local name; for name in "${!CALLS[@]}"; do [[ $name != $1 ]] || echo "$name"; done; }

# What kubelet takes for no driver, and links.
not_drivers() {
    local name
    for name in unnamed closed; do driver_text plain | scripted node-1 "replies/$name"; done
    printf '#!/no/such/interpreter\n' | scripted node-1 replies/foreign
    on node-1 bash -ec 'cd "$0" && mv replies~unnamed/unnamed replies~unnamed/named && chmod 644 replies~closed/closed
        mkdir -p /run/replies.linked && cp replies~plain/plain /run/replies.linked/linked
        ln -s /run/replies.linked replies~linked
        mkdir replies~link && ln -s /run/replies.linked/linked replies~link/link' "$PLUGINS"
}
two_places() { for place in node-1 world; do on "$place" truncate --size 16M /run/replies.disk; done; }

pods() {
    local name
    for name in plain unmount-{lies,file,noise,gone} runs dead leaves beside away init-writes init-fails unnamed \
        closed foreign linked link; do
        pod "$name" "$(flex "$name")"
    done
    pod hung "$(flex dead)"
    container='securityContext: {privileged: true}' pod unmount-inside "$(flex unmount-inside)" |
        sed 's/mountPath: \/v/&, mountPropagation: Bidirectional/'
    script='echo x >/v/file' pod writable "$(flex writable 'readOnly: true')"
    script='echo x >/v/file' pod read-only "$(flex read-only)"
    pod long "$(flex long "options: {long: $(head -c 126000 /dev/zero | tr '\0' x)}")"
    pod says-secret "$(flex secret 'secretRef: {name: secret}, options: {say: it}')"
    # Of a user without rights, who sees the node's processes as monitors do.
    script='grep -o "^hunter2" /proc/mounts; sleep 1
        cat /proc/[0-9]*/cmdline 2>/dev/null | tr "\0" "\n" | grep -m 1 -x hunter2' \
        spec=$'hostPID: true\n  securityContext: {runAsUser: 65534}' \
        pod secret "$(flex secret 'secretRef: {name: secret}')"
    # It reads what lies about on the node, as collectors of logs do.
    script='until cat /v/replies.secret.file; do sleep 1; done' spec='securityContext: {runAsUser: 65534}' \
        pod reads 'hostPath: {path: /run}'
    for name in $(those 'disk-*'); do
        [[ $name == disk-late || $name == disk-hung ]] || pod "$name" "$(flex "$name")"
    done
    printf '%s\n' --- '{"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "replies"},
        "provisioner": "none", "allowVolumeExpansion": true}'
    for name in $(those 'grow-*'); do
        class=replies claim "$name" "{driver: replies/$name}"
        pod "$name" "persistentVolumeClaim: {claimName: $name}"
    done
}

says 'replies: drivers are there' '' quietly eval 'two_places && install_odd && not_drivers'
k create secret generic secret --type replies/secret --from-literal=key=hunter2 >/dev/null
says 'replies: pods are made' '*created*' apply < <(pods)
patience=100 LIMIT=120 says 'replies: those that can run do' '' \
    runs plain unmount-{lies,file,noise,gone,inside} runs dead hung leaves beside away init-writes linked link long \
    disk-{twice,nameless,detach,unattached,fails,stays,noise,busy,held,elsewhere} $(those 'grow-*')

# --- init, the driver's file and its directory
says 'replies: init::quick: while one init runs no volume of any driver is mounted' \
    $'begins\nends\nmounts' on node-1 head -n 3 /run/replies.order
says 'replies: init::no_side_effects, verbs::own_directory: what init writes calls init' \
    again repeated 20 init-writes init
says 'replies: init::without_network_and_tools: an init that fails is called again at each look-up' \
    again repeated 20 init-fails init
network_up() { on node-1 touch /run/replies.network && runs init-fails; }
says 'replies: init::without_network_and_tools: and the driver is there when it works' '' network_up
for name in unnamed closed foreign; do
    says "replies: install: $name: is no driver" '*no volume plugin matched' event "$name" FailedMount
done
says 'replies: install::alone, environment::symlink: links are followed while kubelet runs' 'Running Running' \
    k get pod link linked -o 'jsonpath={.items[*].status.phase}'

# --- what a driver is run with
environment_of_kubelet() {
    on node-1 bash -c 'read -r kubelet </run/kubelet.pid
        diff <(tr "\000" "\n" <"/proc/$kubelet/environ" | sort) /run/replies.runs.environment && echo the same'
}
group_of_kubelet() {
    on node-1 bash -c 'read -r group session </run/replies.runs.group
        read -r kubelet </run/kubelet.pid
        [[ $group == "$kubelet" && $session == "$kubelet" ]] && echo its own'
}
says 'replies: environment::empty: the environment is that of kubelet' 'the same' environment_of_kubelet
says 'replies: environment::no_stdin: the input is empty' /dev/null on node-1 cat /run/replies.runs.input
says 'replies: daemon::own_session: the process group and the session are those of kubelet' 'its own' group_of_kubelet
says 'replies: mount::makes_directory: the directory is there' there on node-1 cat /run/replies.runs.directory
says 'replies: options::long: 126,000 bytes of an option' '126[0-9][0-9][0-9]' on node-1 cat /run/replies.long.length
says 'replies: options::read_only: kubelet keeps the pod from writing' '*Read-only file system' said_by writable
says 'replies: options::read_write: a pod that may write cannot' '*Read-only file system' said_by read-only

# --- secrets
says 'replies: secrets::output: a message is an Event' '*wrong password hunter2' event says-secret FailedMount
says 'replies: secrets::mount_table, secrets::arguments: a pod reads both' $'hunter2\nhunter2' said_by secret

says 'replies: secrets::files, secrets::logs: a pod reads what is left' '*hunter2' said_by reads

# --- attaching
says 'replies: verbs::missing_stay_missing: a Failure of a verb that it lacks' \
    '*failed to GetVolumeName*what is that' event disk-verbs FailedMount
says 'replies: attach::twice: an answer that cannot be read: attached again' 2 made disk-twice attach world
says 'replies: attach::without_secrets_and_tools: what the controllers send' \
    'attach {"kubernetes.io/fsType":"","kubernetes.io/pvOrVolumeName":"v","kubernetes.io/readwrite":"rw"} node-1 ' \
    sent disk-twice attach world
says 'replies: attach::device, attach::wait: no device is a blank one' \
    'waitforattach  {*' sent disk-nameless waitforattach
says 'replies: attach::mount_device_without_name: for mountdevice, too' \
    'mountdevice */mounts/v  {*' sent disk-nameless mountdevice
says 'replies: attach::is_attached: left out, it is attached again and again' \
    again repeated 3 disk-unattached attach world
says 'replies: attach::wait_fails_in_time: a Failure is tried again' again repeated 3 disk-wait waitforattach
says 'replies: attach::mount_device_fails_cleanly: a mount is taken for success' \
    'Running 1' eval 'echo "$(k get pod disk-fails -o "jsonpath={.status.phase}") $(made disk-fails mountdevice)"'


# --- growing
wants() {
    local name
    for name in $(those 'grow-*'); do
        k patch pvc "$name" --type merge --patch '{"spec": {"resources": {"requests": {"storage": "2Gi"}}}}'
    done
    eventually 20 resizing
    k annotate pod $(those 'grow-*') look=now
}
resizing() {
    [[ $(k get pvc $(those 'grow-*') -o 'jsonpath={.items[*].status.conditions[*].type}') == \
        'FileSystemResizePending FileSystemResizePending' ]]
}
grown() { eventually 30 sized "$1"; k get pvc "$1" -o 'jsonpath={.status.capacity.storage}'; }
sized() { [[ $(k get pvc "$1" -o 'jsonpath={.status.capacity.storage}') == 2Gi ]]; }
quietly wants
says 'replies: expand::twice: an answer that cannot be read: called again' again repeated 2 grow-twice expandfs
says 'replies: expand::odd_arguments: of a driver that does not attach: no device' \
    'expandfs {*}  */volumes/replies~grow-twice/replies-grow-twice 2147483648 1073741824 ' sent grow-twice expandfs
says 'replies: expand::grows: a Success is believed' 2Gi grown grow-twice
says 'replies: expand::not_left_to_kubelet: without expandfs nothing grows, and the claim says it did' \
    2Gi grown grow-lacks

# --- the end of pods
global() { echo "/var/lib/kubelet/plugins/kubernetes.io/flexvolume/replies/$1/mounts/v"; }
disturbed() {
    k exec unmount-inside -- sh -c 'mkdir /v/in && mount -t tmpfs x /v/in'
    on node-1 bash -c 'kill -KILL $(pgrep -f "rclone mount /run/replies.data $0 ")
        kill -STOP $(pgrep -f "rclone mount /run/replies.data $1 ")
        umount "$2" && rmdir "$2"
        cd "$3" && { sleep 400 </dev/null >/dev/null 2>&1 & echo "$!" >>/run/replies.pids; }' \
        "$(directory dead)" "$(directory hung dead)" "$(directory unmount-gone)" "$(global disk-busy)"
}
says 'replies: a server ends, one hangs, a directory goes, a process uses a disk, a pod mounts' '' disturbed
k delete pod $(k get pod --output name | grep -vE '/(away|beside|hung|linked)$' | sed 's|.*/||') --wait=false >/dev/null
k delete pod hung --wait=false >/dev/null
says 'replies: unmount::works: Success while it is mounted' $'again\nand the pod stays' stays 3 unmount-lies unmount
says 'replies: unmount::works: a file is left' $'again\nand the pod stays' stays 3 unmount-file unmount
says 'replies: unmount::not_mounted, unmount::many_times: an answer that cannot be read' \
    $'again\nand the pod stays' stays 3 unmount-noise unmount
says 'replies: unmount::mounts_inside: a mount of the pod' $'again\nand the pod stays' stays 3 unmount-inside unmount
says 'replies: unmount::dead: it is called for a server that has ended' \
    '' eval 'k wait --for=delete --timeout=30s pod/dead >/dev/null; made dead unmount | finds grep -vx 1'
says 'replies: unmount::no_directory: kubelet does not call' \
    '' eval 'k wait --for=delete --timeout=30s pod/unmount-gone >/dev/null
        finds made unmount-gone unmount | finds grep -vx 0'
says 'replies: unmount::hung: kubelet itself waits, and does not call' \
    '20* Succeeded' eval 'sleep 3; grep -c . <<<"$(made dead unmount)" >/dev/null; phase hung'
left_over() {
    on node-1 bash -c 'read -r process </run/replies.leaves.pid; read -r kubelet </run/kubelet.pid
        findmnt --noheadings --output SOURCE /run/replies.left
        cat "/proc/$process/comm"
        cmp "/proc/$process/cgroup" "/proc/$kubelet/cgroup" && echo in its control groups'
}
says 'replies: left::mounts, left::processes, left::devices: what kubelet does not know of stays' \
    $'left\nsleep\nin its control groups' \
    eval 'k wait --for=delete --timeout=30s pod/leaves >/dev/null; left_over'
says 'replies: attach::unmount_device: Success while it is mounted' again repeated 3 disk-stays unmountdevice
says 'replies: attach::unmount_device_busy: a process uses it' again repeated 3 disk-busy unmountdevice
says 'replies: attach::unmount_device_again: what is unmounted is not unmounted again' '1 1' \
    eval 'repeated 1 disk-noise detach world >/dev/null
        echo "$(made disk-noise unmountdevice) $(made disk-noise detach world)"'
says 'replies: attach::no_other_mounts: kubelet does not call' \
    '*is still mounted by other references \[/run/replies.elsewhere\]*' \
    kubelet_says 'replies/disk-elsewhere/mounts/v" is still mounted'
says 'replies: attach::device_is_free: it is asked for again until it is' \
    '*device is in use*' kubelet_says 'the device is in use when it was no longer expected'
says 'replies: attach::detach_twice: an answer that cannot be read: detached again' \
    again repeated 2 disk-detach detach world
says 'replies: attach::detach_by_name: the name and the node' 'detach v node-1 ' sent disk-detach detach world

freed() {
    on node-1 bash -c 'kill -CONT $(pgrep -f "rclone mount /run/replies.data")
        kill $(cat /run/replies.pids /run/replies.leaves.pid /run/replies.secret.pid); rm -f /run/replies.pids
        umount /run/replies.left /run/replies.elsewhere "$@"
        cd /var/lib/kubelet/pods && umount */volumes/replies~unmount-{lies/v,inside/v/in}
        rm -f */volumes/replies~unmount-file/v/file' \
        freed "$(global disk-stays)" "$(global disk-busy)" "$(global disk-elsewhere)" 2>/dev/null
    for name in unmount-{lies,file,noise}; do driver_text plain | scripted node-1 "replies/$name"; done
}

# --- kubelet ends at once, some of its calls with it
says 'replies: kubelet ends: pods are made' '*created*' apply < <(
    for name in late-1 late-2; do pod "$name" "$(flex late)"; done
    for name in cut-1 cut-2; do pod "$name" "$(flex cut)"; done
    pod disk-late "$(flex disk-late)"
)
kubelet_ends() {
    freed
    eventually 30 at_least 2 late mount
    eventually 10 at_least 2 cut mount
    eventually 20 at_least 1 disk-late mountdevice
    # A kubelet that starts does not know its driver any more.
    k delete pod linked --timeout=30s >/dev/null
    k delete pod away --wait=false >/dev/null
    eventually 20 at_least 1 away unmount
    kubelet_stop node-1
    on node-1 rm -f /run/replies.network /run/replies.init-fails
    on node-1 bash -c 'kill -KILL $(</run/replies.pids); rm /run/replies.pids'
    k delete pod late-2 cut-2 --force --grace-period=0 >/dev/null 2>&1
    kubelet_start node-1
}
says 'replies: kubelet ends: in calls, and starts' '' kubelet_ends
not_again() {
    pod boots "$(flex init-fails)" | apply >/dev/null
    event boots FailedMount
    on node-1 touch /run/replies.network
    sleep 2
    made init-fails init
}
says 'replies: init::without_network_and_tools: one that fails when kubelet starts is never called again' \
    $'*no volume plugin matched1' not_again
says 'replies: mount::twice, storm::same_directory: a second mount while the first runs' again repeated 3 late mount
says 'replies: attach::mount_device: a second mountdevice while the first runs' again repeated 2 disk-late mountdevice
says 'replies: crash::killed_mount_then_mount: mounted again' again repeated 3 cut mount
says 'replies: crash::lock_is_freed: who finds its lock fails for ever' '*reason: locked' event cut-1 FailedMount
unmounted_for() { eventually 30 on node-1 grep -q "^unmount.*replies~$1/v" "/run/replies.$1" && echo called; }
says 'replies: crash::killed_mount_then_unmount: unmounted, whatever it had done' called unmounted_for cut
says 'replies: storm::mount_and_unmount: unmounted while it mounts' called unmounted_for late
says 'replies: crash::killed_unmount: unmounted again' again repeated 2 away unmount
says 'replies: mount::nothing_beside: unmounted, as if it were a volume' called eval \
    'eventually 30 on node-1 grep -q "^unmount.*replies~beside/side" /run/replies.beside && echo called'
unread() {
    eventually 30 on node-1 grep -q closed /run/replies.late.closed
    on node-1 sort -u /run/replies.late.closed
}
says 'replies: crash::closed_reader: nobody reads the answer' closed unread
says 'replies: install::alone: a link in place of the directory is no driver for a kubelet that starts' \
    '*no volume plugin matched' \
    eval "pod linked-2 '$(flex linked)' | apply >/dev/null; event linked-2 FailedMount"
mounts_at() { on node-1 grep -c -- "$1" /proc/self/mountinfo; }
are_two() { [[ $(mounts_at "$1") == 2 ]]; }
stacked() {
    eventually 25 are_two "$1"
    mounts_at "$1"
}
says 'replies: mount::many_times: two mounts, one on the other' 2 stacked "$(directory late-1 late)"
says 'replies: attach::unmount_device_stacked: of the device, too' 2 stacked "$(global disk-late)"
k delete pod --all --wait=false >/dev/null
last_left() {
    k wait --for=delete --timeout=30s pod/late-1 >/dev/null
    kubelet_says 'replies~late/v: device or resource busy'
}
says 'replies: unmount::stacked: rmdir fails with one left, and unmount is called again' \
    '*remove */replies~late/v: device or resource busy*' last_left
says 'replies: pods go' '' remove pod --all

# The call ignores SIGTERM, which comes after ten minutes.
kubelet_panics() {
    pod disk-hung "$(flex disk-hung)" | apply >/dev/null
    eventually 680 grep -q '^panic: ' "$CLUSTER/log/node-1-kubelet.log"
    grep -m 1 '^panic: ' "$CLUSTER/log/node-1-kubelet.log"
    on node-1 bash -c 'kill -KILL $(</run/replies.pids)'
    kubelet_start node-1
    remove pod disk-hung
}
if [[ -n ${LONG:-} ]]; then
    LIMIT=760 says 'replies: attach::wait_fails_in_time: kubelet ends if it is called for longer' \
        'panic: runtime error*nil pointer dereference' kubelet_panics
fi

# --- node-2: other directories, and what no kubelet survives
other_roots() {
    on node-2 mkdir -p /var/lib/other/plugins "$PLUGINS"
    driver_text plain | on node-2 bash -c \
        'mkdir -p "$0" && cat >"$0/.new" && chmod 755 "$0/.new" && mv "$0/.new" "$0/plain"' \
        '/var/lib/other/the plugins/replies~plain'
    kubelet_stop node-2
    on node-2 sed -i 's|^volumePluginDir: .*|volumePluginDir: "/var/lib/other/the plugins"|' /etc/kubelet.yaml
    on node-2 bash -c 'echo "--root-dir=/var/lib/other/a \"root\" of küb" >/etc/kubelet.flags'
    kubelet_start node-2
}
usual_roots() {
    kubelet_stop node-2
    on node-2 rm /etc/kubelet.flags
    on node-2 sed -i "s|^volumePluginDir: .*|volumePluginDir: $PLUGINS|" /etc/kubelet.yaml
    kubelet_start node-2
}
says 'replies: other roots: kubelet starts' '' other_roots
says 'replies: other roots: a pod is made' '*created*' apply < <(node="node-2" pod rooted "$(flex plain)")
says 'replies: other roots: a pod runs' '' runs rooted
says 'replies: other roots: and goes' '' remove pod rooted
says 'replies: other roots: as before' '' usual_roots
driver_text plain | sed "s/^init=.*/init='{\"status\":\"Success\",\"capabilities\":null}'/" | scripted node-2 \
    replies/null
null_panics() {
    eventually 30 grep -qE '^panic: |Observed a panic|recovered from panic' "$CLUSTER/log/node-2-kubelet.log"
    grep -E -m 1 '^panic: |Observed a panic|recovered from panic' "$CLUSTER/log/node-2-kubelet.log"
    on node-2 bash -c \
        'for try in {1..50}; do [[ -d /proc/$(</run/kubelet.pid) ]] || { echo and ends; break; }; sleep 0.1; done'
    unscripted node-2 replies
}
says 'replies: init::capabilities: null: a pod is made' \
    '*created*' apply < <(node="node-2" pod 'nothing' "$(flex null)")
says 'replies: init::capabilities: null: kubelet ends' '*nil pointer dereference*and ends' null_panics
says 'replies: init::capabilities: null: without the driver it runs again' '' eval \
    'kubelet_start node-2 && remove pod nothing'

finished() {
    k delete pvc --all >/dev/null
    kube delete pv -l chapter=replies >/dev/null
    kube delete storageclass replies >/dev/null
    for place in node-1 world; do
        unscripted "$place" replies
        on "$place" bash -c 'losetup --associated /run/replies.disk | cut -d : -f 1 | xargs -r losetup --detach
            find /run -maxdepth 1 -name "replies.*" -exec rm -r {} +'
    done
}
says 'replies: drivers go' '' finished
says 'replies: nothing is left' '' clean node-1
