#!/usr/bin/env bash
# Servers that fall silent while they serve: every call ends in time, and the node gets rid of the
# volume.
chapter "dropped servers"
hasty nfs
hasty cifs
for kind in idle used; do
    used=${kind#idle}
    name_server "$kind-3.test" "127.0.3.1$([[ $kind = idle ]] && echo 1)"
    name_server "$kind-4.test" "127.0.4.1$([[ $kind = idle ]] && echo 1)"
    name_server "$kind-smb.test" "127.0.5.1$([[ $kind = idle ]] && echo 1)"
    falls_silent "guest: nfs v3 dropped, $kind" nfs "$kind-3.test" "$(export_of "$kind-3.test"),\"version\":\"3\"" \
        "$used"
    falls_silent "guest: nfs v4.2 dropped, $kind" nfs "$kind-4.test" \
        "$(export_of "$kind-4.test"),\"version\":\"4.2\"" "$used"
    # Kernels before 6.13 may crash when they unmount a share whose root directory they keep open on
    # a server that is gone ("Dentry still in use"): this one does.
    falls_silent "guest: cifs dropped, $kind" cifs "$kind-smb.test" \
        "$(share "$kind-smb.test" share),$alice,\"mountOptions\":\"nohandlecache\"" "$used"
done
vendor=example
