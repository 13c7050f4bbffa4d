#!/usr/bin/env bash
# Volumes on block devices: those that kubelet attaches and has mounted once for the node, and those
# that each pod's mount brings. Sourced by tests/guest/test.

# staged DRIVER: where that is, for the only volume there is.
staged() {
    echo "$KUBELET/plugins/kubernetes.io/flexvolume/$vendor/$1/mounts/v"
}

# stage DRIVER OPTIONS: kubelet's mountdevice; OPTIONS is the inside of a JSON object.
stage() {
    local directory
    directory=$(staged "$1")
    mkdir -p "$directory"
    "${caller[@]}" "$PLUGINS/$vendor~$1/$1" mountdevice "$directory" '' "{$2}"
}

# unstage DRIVER: kubelet's unmountdevice.
unstage() {
    "${caller[@]}" "$PLUGINS/$vendor~$1/$1" unmountdevice "$(staged "$1")"
}

# up shared|staged DRIVER OPTIONS, down shared|staged DRIVER: the only volume there is, in a pod or
# for the node.
up() {
    if [[ $1 = shared ]]; then set_up one "$2" "$3"; else stage "$2" "$3"; fi
}
down() {
    if [[ $1 = shared ]]; then tear_down one "$2"; else unstage "$2"; fi
}

# attaches DRIVER true|false: from now on it does or does not; all else in its side file is as it
# was.
attaches() {
    local side=$PLUGINS/$vendor~$1/.flexvol.json rest
    rest=$(sed -E 's/"attach":(true|false),?//; s/^\{//; s/\}$//' "$side")
    printf '{"attach":%s%s}\n' "$2" "${rest:+,$rest}" >"$side"
}

# expand DRIVER OPTIONS DIRECTORY NEW OLD: kubelet's expandfs.
expand() {
    "$PLUGINS/$vendor~$1/$1" expandfs "{$2}" '' "$3" "$4" "$5"
}

# The network block devices that are connected.
nbds() {
    local pid
    for pid in /sys/block/nbd*/pid; do
        [[ ! -e $pid ]] || echo "$pid"
    done
}

# What a driver leaves on the node besides mounts: records and what belongs to them.
left_over() {
    find /run/flexvol -mindepth 2 ! -path '/run/flexvol/log/*'
}

# Only the processes of this very call: a driver may have the name of a program that it runs.
kill_call() {
    pkill -KILL -f "^$PLUGINS/$vendor~$1/$1 $2 "
}

# device_life NAME DRIVER OPTIONS LEFT: from a blank device to one that is gone from the node; LEFT
# is a command that prints nothing then.
device_life() {
    local name=$1 driver=$2 options=$3 left=$4 pod
    says "$name: mounted for the node" "$ok" stage "$driver" "$options" || return
    says "$name: once more" "$ok" stage "$driver" "$options"
    says "$name: a pod" "$ok" set_up one "$driver" "$options"
    says "$name: write" '' in_volume one "$driver" write data "of $name"
    says "$name: a read-only pod" "$ok" set_up ro "$driver" "$options"',"kubernetes.io/readwrite":"ro"'
    says "$name: it reads" "of $name" in_volume ro "$driver" cat data
    says "$name: it cannot write" '*[Rr]ead-only file system*' in_volume ro "$driver" write data no
    for pod in one ro; do
        says "$name: unmount $pod" "$ok" tear_down "$pod" "$driver"
        says "$name: pod $pod is gone" '' remove_pod "$pod" "$driver"
    done
    says "$name: unmounted from the node" "$ok" unstage "$driver"
    says "$name: and once more" "$ok" unstage "$driver"
    says "$name: nothing is mounted" '' mounted_types
    says "$name: nothing is left" '' "$left"
    says "$name: mounted again" "$ok" stage "$driver" "$options"
    says "$name: the data is still there" "of $name" cat "$(staged "$driver")/data"
    says "$name: unmounted again" "$ok" unstage "$driver"
    says "$name: again nothing is left" '' "$left"
}

# equal_names NAME DRIVER OPTIONS OTHER CALLED: two volumes of equal names; the driver attaches.
# The volume of OPTIONS is mounted for the node. It is never shown as the volume of OTHER, which the
# refusal calls CALLED.
equal_names() {
    local name="$1: equal names" driver=$2 options=$3 other=$4 access
    local refused="*another volume*is on this node*these options name *$5*give one of them another name*"
    says "$name: mounted for the node" "$ok" stage "$driver" "$options" || return
    says "$name: a pod" "$ok" set_up one "$driver" "$options"
    says "$name: write" '' in_volume one "$driver" write own "of $name"
    says "$name: the other is not mounted over it" "*\"Failure\"*$5*" stage "$driver" "$other"
    for access in rw ro; do
        says "$name: no pod is shown it as the other, $access" "$refused" \
            set_up two "$driver" "$other,\"kubernetes.io/readwrite\":\"$access\""
        says "$name: nothing is shown, $access" '*nothing is mounted*' in_volume two "$driver" cat own
    done
    says "$name: nothing to unmount" "$ok" tear_down two "$driver"
    says "$name: the first has its own" "of $name" in_volume one "$driver" cat own
    says "$name: its unmount" "$ok" tear_down one "$driver"
    says "$name: no pod is shown what the first has left" "$refused" set_up two "$driver" "$other"
    says "$name: unmounted from the node" "$ok" unstage "$driver"
    says "$name: then the other is mounted" "$ok" stage "$driver" "$other"
    says "$name: and shown" "$ok" set_up two "$driver" "$other"
    says "$name: with nothing of the first" '*No such file*' in_volume two "$driver" cat own
    says "$name: the other's unmount" "$ok" tear_down two "$driver"
    says "$name: unmounted from the node, too" "$ok" unstage "$driver"
}

# pods_life NAME DRIVER OPTIONS LEFT: the same life where nothing is attached: the first pod's mount
# brings the device, the last one's unmount takes it away.
pods_life() {
    local name=$1 driver=$2 options=$3 left=$4 pod
    says "$name: a kubelet that has not heard of it stages nothing" "$ok" stage "$driver" "$options" || return
    says "$name: nothing" '' mounted_types
    says "$name: nothing is brought" '' "$left"
    says "$name: a pod" "$ok" set_up one "$driver" "$options" || return
    says "$name: once more" "$ok" set_up one "$driver" "$options"
    says "$name: one mount" 1 grep -c "$(target one "$driver")" /proc/self/mountinfo
    says "$name: write" '' in_volume one "$driver" write data "of $name"
    says "$name: another pod" "$ok" set_up two "$driver" "$options"
    says "$name: it shares it" "of $name" in_volume two "$driver" cat data
    says "$name: on one device" 1 mounted_devices
    says "$name: a read-only pod" "$ok" set_up ro "$driver" "$options"',"kubernetes.io/readwrite":"ro"'
    says "$name: it cannot write" '*[Rr]ead-only file system*' in_volume ro "$driver" write data no
    for pod in one two; do
        says "$name: unmount $pod" "$ok" tear_down "$pod" "$driver"
        says "$name: pod $pod is gone" '' remove_pod "$pod" "$driver"
        says "$name: the last still reads" "of $name" in_volume ro "$driver" cat data
    done
    says "$name: unmount the last" "$ok" tear_down ro "$driver"
    says "$name: and once more" "$ok" tear_down ro "$driver"
    says "$name: nothing is mounted" '' mounted_types
    says "$name: nothing is left" '' "$left"
    says "$name: mounted again" "$ok" set_up one "$driver" "$options"
    says "$name: the data is still there" "of $name" in_volume one "$driver" cat data
    says "$name: unmounted again" "$ok" tear_down one "$driver"
    says "$name: again nothing is left" '' "$left"
}

# changed_life NAME DRIVER OPTIONS LEFT: the driver attaches no more, and then it does again, while
# pods use the volume.
changed_life() {
    local name=$1 driver=$2 options=$3 left=$4 pod
    attaches "$driver" true
    says "$name: mounted for the node" "$ok" stage "$driver" "$options" || return
    says "$name: a pod" "$ok" set_up one "$driver" "$options"
    says "$name: write" '' in_volume one "$driver" write data "of $name"
    attaches "$driver" false
    says "$name: attached no more: another pod" "$ok" set_up two "$driver" "$options"
    says "$name: attached no more: it shares it" "of $name" in_volume two "$driver" cat data
    says "$name: attached no more: on one device" 1 mounted_devices
    says "$name: attached no more: the first leaves" "$ok" tear_down one "$driver"
    says "$name: attached no more: the other stays" "of $name" in_volume two "$driver" cat data
    says "$name: attached no more: it leaves" "$ok" tear_down two "$driver"
    says "$name: attached no more: nothing is mounted" '' mounted_types
    says "$name: attached no more: nothing is left" '' "$left"
    says "$name: attached no more: unmounted from the node all the same" "$ok" unstage "$driver"
    says "$name: a pod that brings it" "$ok" set_up one "$driver" "$options"
    attaches "$driver" true
    says "$name: attached again: mounted for the node" "$ok" stage "$driver" "$options"
    says "$name: attached again: another pod" "$ok" set_up two "$driver" "$options"
    says "$name: attached again: it shares it" "of $name" in_volume two "$driver" cat data
    says "$name: attached again: on one device" 1 mounted_devices
    for pod in one two; do
        says "$name: attached again: unmount $pod" "$ok" tear_down "$pod" "$driver"
    done
    says "$name: attached again: unmounted from the node" "$ok" unstage "$driver"
    says "$name: attached again: nothing is mounted" '' mounted_types
    says "$name: attached again: nothing is left" '' "$left"
}

# killed shared|staged DRIVER OPTIONS LEFT SECONDS...: the call that brings the device is killed
# after so long, each time on a device of its own, where OPTIONS say NEW; says what did not go well.
killed() {
    local how=$1 driver=$2 given=$3 left=$4 verb=mountdevice options seconds
    shift 4
    [[ $how = staged ]] || verb=mount
    for seconds in "$@"; do
        options=${given/NEW/$how-after-$seconds}
        (up "$how" "$driver" "$options" & wait) >/dev/null 2>&1 &
        sleep "$seconds"
        kill_call "$driver" "$verb"
        wait
        in_the_end up "$how" "$driver" "$options" >/dev/null
        in_the_end down "$how" "$driver" >/dev/null
        "$left"
    done
}

# reader_first NAME DRIVER OPTIONS LEFT [REFUSED]: the node's first pod only reads; a writer that
# comes after it is served, or refused so until the reader has gone.
reader_first() {
    local name="$1: a reader first" driver=$2 options=$3 left=$4 refused=${5:-}
    says "$name" "$ok" set_up ro "$driver" "$options"',"kubernetes.io/readwrite":"ro"'
    if [[ -n $refused ]]; then
        says "$name: a writer is refused" "$refused" set_up one "$driver" "$options"
        says "$name: and nothing of it stays" "$ok" tear_down one "$driver"
        says "$name: the reader leaves" "$ok" tear_down ro "$driver"
    fi
    says "$name: a writer" "$ok" set_up one "$driver" "$options"
    says "$name: it writes" '' in_volume one "$driver" write after "of $name"
    if [[ -z $refused ]]; then
        says "$name: the reader sees it" "of $name" in_volume ro "$driver" cat after
        says "$name: and cannot write" '*[Rr]ead-only file system*' in_volume ro "$driver" write after no
        says "$name: the reader leaves" "$ok" tear_down ro "$driver"
    fi
    says "$name: the writer leaves" "$ok" tear_down one "$driver"
    says "$name: nothing is left" '' "$left"
}
