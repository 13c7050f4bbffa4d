#!/usr/bin/env bash
# shellcheck disable=SC2034 # read by lib/case.sh and lib/tap.sh
# The smallest part of everything: a pod by FlexVolume and one by CSI, attached and grown, both
# upgraded while they write. The gate plays this chapter alone. Sourced by tests/cluster/chapter.
# shellcheck source=tests/cluster/lib/node.sh
. "${here:?}/lib/node.sh"
# shellcheck source=tests/cluster/lib/resize.sh
. "$here/lib/resize.sh"
# Nothing here is about time.
LIMIT=200 patience=120

# later: another file by comparison: bytes after the end of a program are never read.
later() {
    cp -- "$CLUSTER/bin/$1" "$CLUSTER/bin/$1-2"
    echo 'a later build' >>"$CLUSTER/bin/$1-2"
}
# upgraded: the later file is the driver, and says the same.
upgraded() {
    on node-1 "$CLUSTER/bin/flexvol-2" install smoke/image --plugin-dir "$PLUGINS" >/dev/null
    on node-1 cmp -- "$PLUGINS/smoke~image/image" "$CLUSTER/bin/flexvol-2"
}
# restarted: flexvold of the node is another one, of the later file.
restarted() {
    ends_on node-1 csi
    runs_on node-1 csi "$CLUSTER/bin/flexvold-2" csi --driver example.com/disk --plugin-dir "$PLUGINS" \
        --node-id node-1 --register
}
# goes_on POD: it has written since.
count() { k exec "$1" -- wc -l /v/count | cut -d ' ' -f 1; }
is_more() { [[ $(count "$1") -gt $2 ]]; }
goes_on() { eventually "$patience" is_more "$1" "$(count "$1")"; }
# counting: a pod's script that stops at the first write that fails.
readonly counting='while echo line >>/v/count; do sleep 0.2; done; echo a write failed'

namespace smoke >/dev/null
says 'smoke: a FlexVolume driver is installed' '*smoke/image installed*' \
    on node-1 flexvol install smoke/image --plugin-dir "$PLUGINS"
says 'smoke: a storage serves disks' '' storage_begins
says 'smoke: a driver is served over CSI' '' driver_begins
says 'smoke: an account that may do what ours does' '*created*' account
says 'smoke: ours attaches, provisions and grows' 'world_*' begins
says 'smoke: a claim and pods' '*created*' apply < <(
    class smoke "$DISK" 'allowVolumeExpansion: true
parameters: {csi.storage.k8s.io/fstype: xfs, size: 320M}'
    size=320Mi asks disk smoke
    script=$counting on_claim csi disk
    script=$counting pod flex 'flexVolume: {driver: smoke/image, fsType: ext4, options: {file: a.img, size: 32Mi}}'
)
says 'smoke: both run' '' runs flex csi
says 'smoke: the FlexVolume one writes' '' goes_on flex
says 'smoke: the CSI one writes' '' goes_on csi
says 'smoke: its disk is attached' "*.node*" storage_attached
says 'smoke: more is asked for' '' finds wants disk 384Mi
says 'smoke: the claim has grown' '384Mi -' grown csi disk 384Mi
says 'smoke: so has its file system, in use' larger larger csi 300

says 'smoke: later builds' '' eval 'later flexvol && later flexvold'
says 'smoke: the FlexVolume driver is upgraded' '' upgraded
says 'smoke: flexvold is upgraded' '' restarted
says 'smoke: the FlexVolume pod goes on' '' goes_on flex
says 'smoke: the CSI pod goes on' '' goes_on csi
says 'smoke: the FlexVolume pod ends' '' remove pod flex
says 'smoke: another pod has its data' 'line' \
    eval 'script="head -n 1 /v/count" pod next "flexVolume: {driver: smoke/image, options: {file: a.img}}" |
        apply >/dev/null; said_by next'
says 'smoke: the CSI pod ends' '' remove pod csi
says 'smoke: another pod, on another node, has its data' 'line' \
    eval 'node=node-2 script="head -n 1 /v/count" on_claim moved disk | apply >/dev/null; said_by moved'

says 'smoke: all pods go' '' remove pod --all
says 'smoke: the claim goes' '' remove pvc --all
says 'smoke: with its volume' '' eventually "$patience" no_volumes "$DISK"
says 'smoke: the storage has nothing attached' '' eventually "$patience" not_attached
says 'smoke: ours ends' '' ends_on world ours
says 'smoke: and gives the lease back' '' eventually "$patience" no_holder
says 'smoke: the account goes' '' no_account
says 'smoke: the driver ends' '' driver_ends
says 'smoke: the class goes' '*deleted*' kube delete storageclass -l chapter=csi-resize
kube delete csidriver "$DISK" >/dev/null
on node-1 flexvol uninstall smoke/image --plugin-dir "$PLUGINS" >/dev/null
for each in node-1 node-2; do
    unscripted "$each" example.com
    says "smoke: nothing is left on $each" '' clean "$each"
done
unscripted world example.com
says 'smoke: the storage ends' '' storage_ends
rm -f -- "$CLUSTER"/bin/*-2
