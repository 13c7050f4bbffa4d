#!/usr/bin/env bash
# Volumes that kubelet attaches and has mounted once for the node. Sourced by tests/guest/test.

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

# up shared|staged DRIVER OPTIONS, down shared|staged DRIVER: the only volume there is, in a pod or for the node.
up() {
    if [[ $1 = shared ]]; then set_up one "$2" "$3"; else stage "$2" "$3"; fi
}
down() {
    if [[ $1 = shared ]]; then tear_down one "$2"; else unstage "$2"; fi
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

# device_life NAME DRIVER OPTIONS LEFT: from a blank device to one that is gone from the node; LEFT is a command that prints nothing then.
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

# killed DRIVER OPTIONS LEFT SECONDS...: mountdevice is killed after so long, each time on a device of its own, where OPTIONS say NEW; says
# what did not go well.
killed() {
    local driver=$1 given=$2 left=$3 options seconds
    shift 3
    for seconds in "$@"; do
        options=${given/NEW/after-$seconds}
        (stage "$driver" "$options" & wait) >/dev/null 2>&1 &
        sleep "$seconds"
        kill_call "$driver" mountdevice
        wait
        in_the_end stage "$driver" "$options" >/dev/null
        in_the_end unstage "$driver" >/dev/null
        "$left"
    done
}
