#!/usr/bin/env bash
# Servers that fall silent while they serve: every call ends in time, and the node gets rid of the volume.
chapter "dropped servers"

# hangs POD DRIVER: a container that waits for the server for ever; it must not keep the volume.
hangs() {
    (in_volume "$1" "$2" cat data >/dev/null 2>&1; :) &
}

# falls_silent NAME DRIVER SERVER OPTIONS
falls_silent() {
    local name=$1 driver=$2 server=$3 options=$4
    says "$name: mount" "$ok" set_up hung "$driver" "$options" || return
    says "$name: write" '' in_volume hung "$driver" write data x
    drop_server "$server"
    LIMIT=18 says "$name: the server is gone: mount fails in time and names it" "*Failure*$server*" set_up late "$driver" "$options"
    says "$name: and leaves nothing" '' remove_pod late "$driver"
    hangs hung "$driver"
    hung=$!
    LIMIT=18 says "$name: unmount of the hung volume" "$ok" tear_down hung "$driver"
    says "$name: unmount again" "$ok" tear_down hung "$driver"
    says "$name: the pod can be removed" '' remove_pod hung "$driver"
    says "$name: nothing is mounted" '' mounted_types
    kill -KILL -- "-$hung" 2>/dev/null
    heal_server "$server"
}

name_server drop3.test 127.0.3.3
name_server drop4.test 127.0.3.4
name_server drop-smb.test 127.0.3.5
falls_silent "guest: nfs v3 dropped" nfs drop3.test "$(export_of drop3.test),\"version\":\"3\""
falls_silent "guest: nfs v4.2 dropped" nfs drop4.test "$(export_of drop4.test),\"version\":\"4.2\""
falls_silent "guest: cifs dropped" cifs drop-smb.test "$(share drop-smb.test share),$alice"
