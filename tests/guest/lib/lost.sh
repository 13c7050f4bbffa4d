#!/usr/bin/env bash
# Devices whose records are lost, as with a kubelet in a container that has a /run of its own.
# Sourced by tests/guest/test.

lose() {
    rm -rf /run/flexvol
}

# is_lost NAME DRIVER OPTIONS LEFT: with two pods, and a record that neither has; LEFT is a command
# that prints nothing once the device is gone.
is_lost() {
    local name=$1 driver=$2 options=$3 left=$4
    LIMIT=120 says "$name: a pod" "$ok" set_up one "$driver" "$options" || return
    says "$name: written" '' in_volume one "$driver" write lost "of $name"
    lose
    LIMIT=120 says "$name: another pod" "$ok" set_up two "$driver" "$options"
    says "$name: it shares it" "of $name" in_volume two "$driver" cat lost
    says "$name: the first leaves" "$ok" tear_down one "$driver"
    says "$name: the other has it still" "of $name" in_volume two "$driver" cat lost
    lose
    LIMIT=60 says "$name: the last leaves" "$ok" tear_down two "$driver"
    says "$name: nothing is left of it" '' "$left"
    LIMIT=120 says "$name: a pod once more" "$ok" set_up one "$driver" "$options"
    says "$name: what was written" "of $name" in_volume one "$driver" cat lost
    says "$name: the pod leaves" "$ok" tear_down one "$driver"
    says "$name: nothing is left" '' "$left"
}
