#!/usr/bin/env bash
# Servers that fall silent while they serve: every call ends in time, and the node gets rid of the
# volume. Sourced by tests/guest/test.

# What a call may take at most: its deadline, ten seconds to undo, two to clean up, and some for
# this guest.
allowed=20

# hasty DRIVER: one that gives up soon.
hasty() {
    vendor=hasty
    install_driver "$1" '{"deadlines":{"mount":4,"unmount":4}}'
}

# hangs POD DRIVER: a container that waits for the server for ever.
hangs() {
    (in_volume "$1" "$2" sh -c 'while sleep 0.1; do stat -f . && cat data; done >/dev/null 2>&1') &
    user=$!
    disown "$user"
}

# falls_silent NAME DRIVER SERVER OPTIONS USED: with a container in the volume, or without. LATE are
# options of another volume, for what nobody would be asked for twice; with STAYS the volume is
# there until the server is back.
falls_silent() {
    local name=$1 driver=$2 server=$3 options=$4 used=${5:-} late=${LATE:-$4} stays=${STAYS:-}
    says "$name: mount" "$ok" set_up hung "$driver" "$options" || return
    says "$name: write" '' in_volume hung "$driver" write data x
    user=
    [[ -z $used ]] || hangs hung "$driver"
    drop_server "$server"
    [[ $driver != nfs ]] ||
        LIMIT=$allowed says "$name: doctor tells which volume hangs" "*volume-hung*fix*server*" \
            ./flexvol doctor --check volumes --plugin-dir "$PLUGINS" --kubelet-root "$KUBELET" --no-init
    LIMIT=$allowed says "$name: another mount fails in time and names it" "*Failure*$server*" \
        set_up late "$driver" "$late"
    # Which has nothing to do with whether somebody uses the other volume, and takes its time.
    [[ -n $used ]] || LIMIT=$allowed says "$name: and when the kernel is left to wait" \
        "*Failure*@($server|$(address_of "$server"))*" \
        set_up late "$driver" "${late/'"connectTimeout":"1"'/'"connectTimeout":"0"'}"
    says "$name: and leaves nothing" '' remove_pod late "$driver"
    if [[ -z $stays ]]; then
        # Answered within its deadline, and what this guest needs.
        LIMIT=12 says "$name: unmount of the hung volume" "$ok" tear_down hung "$driver"
        says "$name: the pod can be removed" '' remove_pod hung "$driver"
        says "$name: nothing is mounted" '' mounted_types
    else
        LIMIT=$allowed says "$name: unmount of the hung volume returns" '*"status"*' tear_down hung "$driver"
    fi
    # Not waited for: the kernel may hold it until the server is back, or longer.
    [[ -z $user ]] || kill -KILL -- "-$user" 2>/dev/null
    heal_server "$server"
    # The kernel may hold the call before until now.
    LIMIT=120 says "$name: unmount again" "$ok" in_the_end tear_down hung "$driver"
    [[ -z $stays ]] || says "$name: the pod can be removed" '' remove_pod hung "$driver"
    # The kernel takes a while to see that.
    LIMIT=120 says "$name: the server serves again" "$ok" in_the_end set_up back "$driver" "$options"
    # What nobody has flushed is lost with the mount.
    [[ -z $stays ]] || says "$name: what was written" x in_volume back "$driver" cat data
    says "$name: and is let go" "$ok" tear_down back "$driver"
}
