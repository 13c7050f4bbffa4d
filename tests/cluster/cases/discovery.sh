#!/usr/bin/env bash
# Drivers that come, change and go under a kubelet that runs, and kubelets and nodes that end
# beneath their volumes. Sourced by tests/cluster/chapter.
# shellcheck source=tests/cluster/lib/node.sh
. "${here:?}/lib/node.sh"

# of NAME DRIVER: a pod with a volume of that driver, which has the options that memory and images
# have.
of() { pod "$1" "flexVolume: {driver: $2, options: {size: ${size:-4Mi}${file:+, file: $1.img}}}"; }
# several FIRST LAST DRIVER: pods with these numbers, as `names` are.
several() { for number in $(seq "$1" "$2"); do of "pod-$number" "$3"; done; }
names() { seq --format="pod-%.0f" "$1" "$2"; }
# setup NODE DRIVER...: installs them.
setup() { on "$1" flexvol install "${@:2}" --plugin-dir "$PLUGINS"; }
# failed_mounts: the Events of the chapter's pods, of that reason.
failed_mounts() { k get events --field-selector reason=FailedMount \
    -o 'jsonpath={range .items[*]}{.message}{"\n"}{end}'; }

namespace discovery >/dev/null

# The first driver ever of a node.
driverless() {
    kubelet_stop "$1"
    on "$1" rm -rf "$PLUGINS"
    [[ $2 == missing ]] || on "$1" mkdir -p "$PLUGINS"
    kubelet_start "$1"
}
for state in missing empty; do
    says "discovery: first driver: the directory is $state at kubelet's start" '' driverless node-2 "$state"
    says "discovery: first driver: it was $state: installed" '*flexvol/tmpfs installed*' setup node-2 tmpfs
    says "discovery: first driver: it was $state: a pod is made" '*created*' \
        apply < <(node="node-2" of "first-$state" flexvol/tmpfs)
    says "discovery: first driver: it was $state: it runs" '' runs "first-$state"
    says "discovery: first driver: it was $state: it goes" '' remove pod "first-$state"
done

waited_for() {
    (sleep 0.5; node="node-2" of waits example.com/late | apply >/dev/null) &
    setup node-2 example.com/late=tmpfs --wait=30
    echo "exit status: $?"
}
says 'discovery: --wait: kubelet has called it' '*example.com/late installed*kubelet*exit status: 0' waited_for
says 'discovery: --wait: a pod runs' '' runs waits
says 'discovery: --wait: it goes' '' remove pod waits
says 'discovery: --wait: kubelet does not come' '*exit status: 9' \
    eval 'setup node-2 example.com/later=tmpfs --wait=1; echo "exit status: $?"'
says 'discovery: first drivers: nothing is left' '' clean node-2

# 200 upgrades while 100 pods come and go.
# shellcheck disable=SC2016 # on the node
upgrades='
    for build in 0 1; do cp /usr/local/bin/flexvol /run/build-$build && printf %s "$build" >>/run/build-$build; done
    for number in $(seq 200); do
        /run/build-$((number % 2)) install tmpfs --plugin-dir "$0"
        sleep 0.1
    done'
storm() {
    local wave
    on node-1 bash -c "$upgrades" "$PLUGINS" >"$SHARED/upgrades" 2>&1 &
    for wave in 0 20 40 60 80; do
        several "$((wave + 1))" "$((wave + 20))" flexvol/tmpfs | apply >/dev/null
        # shellcheck disable=SC2046 # one each
        runs $(names "$((wave + 1))" "$((wave + 20))") || return
        # shellcheck disable=SC2046 # one each
        k delete --wait=false pod $(names "$((wave + 1))" "$((wave + 20))") >/dev/null
    done
    wait "$!"
    k wait --for=delete --timeout=30s pod --all >/dev/null
}
before=$(failed_mounts | wc -l)
mkdir -p "$SHARED"
setup node-1 tmpfs >/dev/null
LIMIT=150 says 'discovery: upgrades: 100 pods come and go' '' storm
says 'discovery: upgrades: 200 meanwhile' 200 grep -c 'tmpfs upgraded' "$SHARED/upgrades"
says 'discovery: upgrades: no FailedMount' "$before" eval 'failed_mounts | wc -l'
says 'discovery: upgrades: nothing is left' '' clean node-1

# Another driver is taken over, and put back, with volumes of both. It is as most of them are.
foreign() {
    cat >"$SHARED/foreign" <<'SH'
#!/bin/sh
exec 3>&1 >/dev/null 2>&1
case $1 in
init) answer='"Success","capabilities":{"attach":false}' ;;
mount) mkdir -p "$2" && mount -t tmpfs other "$2" && answer='"Success"' ;;
unmount) umount "$2" && answer='"Success"' ;;
*) answer='"Not supported"' ;;
esac
echo "{\"status\":${answer:-\"Failure\"}}" >&3
SH
    on node-1 mkdir "$PLUGINS/other~tmpfs"
    on node-1 install -m 755 "$SHARED/foreign" "$PLUGINS/other~tmpfs/.tmpfs"
    on node-1 mv "$PLUGINS/other~tmpfs/.tmpfs" "$PLUGINS/other~tmpfs/tmpfs"
}
says 'discovery: take-over: another driver is there' '' foreign
says 'discovery: take-over: its pod is made' '*created*' apply < <(of taken-1 other/tmpfs)
says 'discovery: take-over: and runs' '' runs taken-1
says 'discovery: take-over: not unasked' '*--take-over*' setup node-1 other/tmpfs=tmpfs
says 'discovery: take-over: asked' '*other/tmpfs taken over*' setup node-1 other/tmpfs=tmpfs --take-over
says 'discovery: take-over: our pod is made' '*created*' apply < <(of taken-2 other/tmpfs)
says 'discovery: take-over: and runs' '' runs taken-2
says 'discovery: take-over: we unmount what is not ours' '' remove pod taken-1
says 'discovery: roll-back' '*other/tmpfs*' setup node-1 other/tmpfs --roll-back
says 'discovery: roll-back: its pod is made' '*created*' apply < <(of taken-3 other/tmpfs)
says 'discovery: roll-back: and runs' '' runs taken-3
says 'discovery: roll-back: it unmounts what is ours' '' remove pod taken-2 taken-3
# Doctor takes a young record for one of a call that runs.
# shellcheck disable=SC2016 # on the node
on node-1 bash -c 'sed -i "s/\"since\":[0-9]*/\"since\":1/" /run/flexvol/volumes/v-*'
says 'discovery: roll-back: doctor finds our record of it' '*record-left*' on node-1 flexvol doctor
says 'discovery: roll-back: and forgets it' '*repaired *forget the record*' on node-1 flexvol doctor --repair=now
says 'discovery: roll-back: nothing is left' '' clean node-1

# Uninstalled, with and without volumes.
says 'discovery: uninstall: a pod is made' '*created*' apply < <(of stays flexvol/tmpfs)
says 'discovery: uninstall: and runs' '' runs stays
says 'discovery: uninstall: not while it is mounted' '*a volume is mounted*end those pods, or add --when-idle*' \
    on node-1 flexvol uninstall tmpfs --plugin-dir "$PLUGINS"
idle() {
    on node-1 flexvol uninstall tmpfs --when-idle --plugin-dir "$PLUGINS" &
    remove pod stays
    wait "$!"
}
says 'discovery: uninstall: when idle' '*flexvol/tmpfs removed*' idle
says 'discovery: uninstall: a pod is made after it' '*created*' apply < <(of comes flexvol/tmpfs)
says 'discovery: uninstall: kubelet has forgotten the driver' '*no volume plugin matched*' event comes FailedMount
says 'discovery: uninstall: explain-error knows the way' '*kubelet has no driver of that name*' \
    explains "${last:-nothing}"
says 'discovery: uninstall: installed again' '*flexvol/tmpfs installed*' setup node-1 tmpfs image
says 'discovery: uninstall: the pod runs' '' runs comes
says 'discovery: uninstall: and goes' '' remove pod comes

# Kubelet ends at once in the middle of calls, and the next one completes the work. It takes a
# second to make a qcow2 image and show it. kill_after PATTERN END COMMAND...: kubelet ends as soon
# as it has logged the first after the command. Says whether the second was not yet.
kill_after() {
    local log=$CLUSTER/log/node-1-kubelet.log from killer
    from=$(($(wc -l <"$log") + 1))
    # It is on the node already: an unmount does not last until a process of another has come.
    # shellcheck disable=SC2016 # on the node
    on node-1 bash -c 'read -r kubelet </run/kubelet.pid
        grep --quiet --max-count=1 "$0" < <(timeout 30 tail --lines="+$2" --follow "$1")
        kill -KILL "$kubelet"' "$1" "$log" "$from" &
    killer=$!
    "${@:3}" >/dev/null
    wait "$killer"
    kubelet_stop node-1 2>/dev/null
    [[ $(tail --lines="+$from" "$log" | grep -c "$1") -le $(tail --lines="+$from" "$log" | grep -c "$2") ]] ||
        echo middle
    kubelet_start node-1
}
two() { size=32Mi file=yes several "$1" "$(($1 + 1))" flexvol/qcow2 | apply; }
killed_in_mounts() {
    local first
    for first in 1 3 5; do
        kill_after "MountVolume started.*discovery/pod-[$first$((first + 1))]\"" \
            "MountVolume.SetUp succeeded.*discovery/pod-[$first$((first + 1))]\"" \
            two "$first"
    done
    # shellcheck disable=SC2046 # one each
    runs $(names 1 6)
}
killed_in_unmounts() {
    local first
    for first in 1 3 5; do
        # shellcheck disable=SC2046 # one each
        kill_after 'UnmountVolume started.*flexvol/qcow2' 'UnmountVolume.TearDown succeeded.*flexvol/qcow2' \
            k delete --wait=false pod $(names "$first" "$((first + 1))")
    done
    k wait --for=delete --timeout=50s pod --all >/dev/null
}
setup node-1 qcow2 >/dev/null
# At least once of three times.
says 'discovery: kill -9: in mounts, and all run' 'middle*' killed_in_mounts
says 'discovery: kill -9: in mounts: in time' '' never_said 'timed out'
says 'discovery: kill -9: in unmounts, and all go' 'middle*' killed_in_unmounts
says 'discovery: kill -9: in unmounts: in time' '' never_said 'timed out'
says 'discovery: kill -9: nothing is left' '' clean node-1

# Kubelet is away, and pods go meanwhile: what they had is unmounted by the next one, and what stays
# is not touched.
restarted() {
    kubelet_stop node-1
    k delete --force --grace-period=0 pod pod-2 >/dev/null 2>&1
    kubelet_start node-1
    eventually 40 only_one
    k exec pod-1 -- cat /v/file
}
only_one() { [[ $(on node-1 findmnt --noheadings --raw --output TARGET | grep -c '/volumes/flexvol~tmpfs/v$') == 1 ]]; }
says 'discovery: restart: pods are made' '*created*' eval 'several 1 2 flexvol/tmpfs | apply'
says 'discovery: restart: they write' '' eval 'runs pod-1 pod-2 && k exec pod-1 -- sh -c "echo kept >/v/file"'
says 'discovery: restart: what stays has its data' kept restarted
says 'discovery: restart: what went is unmounted' '' only_one
says 'discovery: restart: the other goes' '' remove pod pod-1
says 'discovery: restart: nothing is left' '' clean node-1

# The node loses power with volumes mounted. Its pods start again: images have their data, memory is
# empty.
rebooted() { "$here/kill" node-1 && "$here/boot" node-1 && eventually 60 booted; }
booted() {
    local state='{.items[*].status.containerStatuses[0].restartCount} {.items[*].status.phase}'
    [[ $(k get pod on-disk in-memory -o "jsonpath=$state") == '1 1 Running Running' ]]
}
says 'discovery: reboot: pods are made' '*created*' apply < <({
    file=yes size=32Mi of on-disk flexvol/image
    of in-memory flexvol/tmpfs
} | sed 's/restartPolicy: Never/restartPolicy: Always/')
# shellcheck disable=SC2016 # in the pods
says 'discovery: reboot: they write' '' \
    eval 'runs on-disk in-memory &&
        for pod in on-disk in-memory; do k exec $pod -- sh -c "echo $pod >/v/file && sync"; done'
LIMIT=120 says 'discovery: reboot: they run again' '' rebooted
says 'discovery: reboot: the image has its data' on-disk k exec on-disk -- cat /v/file
says 'discovery: reboot: memory has none' '*No such file*' k exec in-memory -- cat /v/file
says 'discovery: reboot: doctor finds nothing' '*0 errors, 0 warnings*' on node-1 flexvol doctor
says 'discovery: reboot: they go' '' remove pod on-disk in-memory
says 'discovery: reboot: nothing is left' '' clean node-1

gone_again() {
    on node-1 flexvol uninstall tmpfs image qcow2 --plugin-dir "$PLUGINS" &&
        on node-1 rm -r "$PLUGINS/other~tmpfs" && on node-1 ls -A "$PLUGINS"
    on node-2 flexvol uninstall tmpfs example.com/late example.com/later --plugin-dir "$PLUGINS" &&
        on node-2 ls -A "$PLUGINS"
}
says 'discovery: drivers go' '*example.com/later removed' gone_again
