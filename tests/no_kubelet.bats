#!/usr/bin/env bats
# What hides a kubelet of this machine from tests: tests/support/no_kubelet.sh.

setup() {
    repository=$(cd -- "$BATS_TEST_DIRNAME/.." && pwd)
}

@test "volumes and drivers of a kubelet are not seen, and stay where they are" {
    unshare --mount true 2>/dev/null || skip "needs root for a mount namespace"
    # shellcheck disable=SC2016 # expanded by the inner shell
    run env -C "$repository" unshare --mount --propagation private bash -ec '
        mount -t tmpfs foreign /usr/libexec
        drivers=/usr/libexec/kubernetes/kubelet-plugins/volume/exec
        pod="/mnt/a kubelet/pods/7/volumes/flexvol~tmpfs/data"
        mount -t tmpfs foreign /mnt
        mkdir -p "$drivers/flexvol~tmpfs" "$pod"
        mount -t tmpfs foreign "$pod"
        unshare --mount --propagation private sh -ec ". tests/support/no_kubelet.sh
            ! grep -q volumes/flexvol~ /proc/self/mountinfo && [ -z \"\$(ls /usr/libexec/kubernetes)\" ]"
        grep -q volumes/flexvol~ /proc/self/mountinfo
        [[ -d $drivers/flexvol~tmpfs ]]'
    [ "$status" -eq 0 ]
}

@test "nothing is unmounted where that would travel" {
    unshare --mount true 2>/dev/null || skip "needs root for a mount namespace"
    # shellcheck disable=SC2016 # expanded by the inner shell
    run env -C "$repository" unshare --mount --propagation private bash -ec '
        mount -t tmpfs test /mnt
        mount --make-shared /mnt
        mkdir -p /mnt/pods/7/volumes/a~b/c
        mount -t tmpfs test /mnt/pods/7/volumes/a~b/c
        sh -e tests/support/no_kubelet.sh && exit 1
        grep -q volumes/a~b /proc/self/mountinfo'
    [ "$status" -eq 0 ]
    [[ $output == *'private propagation'* ]]
}
