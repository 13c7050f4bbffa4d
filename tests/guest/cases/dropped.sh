#!/usr/bin/env bash
# Servers that fall silent while they serve: every call ends in time, and the node gets rid of the volume.
chapter "dropped servers"
vendor=hasty
install_driver nfs '{"deadlines":{"mount":4,"unmount":4}}'
install_driver cifs '{"deadlines":{"mount":4,"unmount":4}}'
# What a call may take at most: its deadline, ten seconds to undo, two to clean up, and some for this guest.
allowed=20

# hangs POD DRIVER: a container that waits for the server for ever.
hangs() {
    (in_volume "$1" "$2" sh -c 'while sleep 0.1; do stat -f . && cat data; done >/dev/null 2>&1') &
    user=$!
    disown "$user"
}

# falls_silent NAME DRIVER SERVER OPTIONS USED: with a container in the volume, or without.
falls_silent() {
    local name=$1 driver=$2 server=$3 options=$4 used=$5
    says "$name: mount" "$ok" set_up hung "$driver" "$options" || return
    says "$name: write" '' in_volume hung "$driver" write data x
    user=
    [[ -z $used ]] || hangs hung "$driver"
    drop_server "$server"
    LIMIT=$allowed says "$name: another mount fails in time and names it" "*Failure*$server*" set_up late "$driver" "$options"
    LIMIT=$allowed says "$name: and when the kernel is left to wait" "*Failure*$server*" \
        set_up late "$driver" "${options/'"connectTimeout":"1"'/'"connectTimeout":"0"'}"
    says "$name: and leaves nothing" '' remove_pod late "$driver"
    LIMIT=$allowed says "$name: unmount of the hung volume" "$ok" tear_down hung "$driver"
    says "$name: the pod can be removed" '' remove_pod hung "$driver"
    says "$name: nothing is mounted" '' mounted_types
    # Not waited for: the kernel may hold it until the server is back, or longer.
    [[ -z $user ]] || kill -KILL -- "-$user" 2>/dev/null
    heal_server "$server"
    # The kernel may hold the call before until now.
    LIMIT=120 says "$name: unmount again" "$ok" in_the_end tear_down hung "$driver"
    # The kernel takes a while to see that.
    LIMIT=120 says "$name: the server serves again" "$ok" in_the_end set_up back "$driver" "$options"
    says "$name: and is let go" "$ok" tear_down back "$driver"
}

for kind in idle used; do
    used=${kind#idle}
    name_server "$kind-3.test" "127.0.3.1$([[ $kind = idle ]] && echo 1)"
    name_server "$kind-4.test" "127.0.4.1$([[ $kind = idle ]] && echo 1)"
    name_server "$kind-smb.test" "127.0.5.1$([[ $kind = idle ]] && echo 1)"
    falls_silent "guest: nfs v3 dropped, $kind" nfs "$kind-3.test" "$(export_of "$kind-3.test"),\"version\":\"3\"" "$used"
    falls_silent "guest: nfs v4.2 dropped, $kind" nfs "$kind-4.test" "$(export_of "$kind-4.test"),\"version\":\"4.2\"" "$used"
    # Kernels before 6.13 may crash when they unmount a share whose root directory they keep open on a server that is gone
    # ("Dentry still in use"): this one does.
    falls_silent "guest: cifs dropped, $kind" cifs "$kind-smb.test" \
        "$(share "$kind-smb.test" share),$alice,\"mountOptions\":\"nohandlecache\"" "$used"
done
vendor=example
