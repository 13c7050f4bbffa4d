#!/usr/bin/env bash
# The same volumes by FlexVolume and by CSI, through the same drivers. Sourced by the chapter csi.

# install_alike: the drivers, and what they serve.
install_alike() {
    on node-1 flexvol install tmpfs image bind secretfiles --plugin-dir "$PLUGINS" \
        --set 'policy.imageRoots=["/var/lib/images"]' --set 'policy.bindRoots=["/var/lib/volumes"]'
    on node-1 mkdir -p /var/lib/images /var/lib/volumes/bound
    # shellcheck disable=SC2016 # on the node
    on node-1 bash -c 'umask 117; echo text >/var/lib/volumes/bound/file'
}

# What a pod sees of its volume: owner and mode of everything, content, mount flags and those of the
# file system.
# shellcheck disable=SC2016 # in the pod
readonly SEES='stat -c "%n %u:%g %a" /v $(ls -d /v/* 2>/dev/null)
    cat /v/* 2>/dev/null; awk '\''$5 == "/v" { own = $6; sub(/.* - /, ""); print own, $1, $3 }'\'' /proc/self/mountinfo'

# twins NAME DRIVER OPTIONS [SECRET [MORE]]: two pods, one with the volume by FlexVolume, one by
# CSI. In OPTIONS, {way} is what keeps the two apart.
twins() {
    local flex csi
    flex="driver: flexvol/$2, options: {${3//\{way\}/flex}}$(reference secretRef "${4:-}")"
    csi="driver: $2.flexvol.flex.flexvol.dev, volumeAttributes: {${3//\{way\}/csi}}"
    csi+=$(reference nodePublishSecretRef "${4:-}")
    script=$SEES pod "flex-$1" "flexVolume: {$flex${5:+, $5}}"
    script=$SEES pod "csi-$1" "csi: {$csi${5:+, $5}}"
}
reference() { [[ -z $2 ]] || echo ", $1: {name: $2}"; }

pods_alike() {
    local group='securityContext: {fsGroup: 2000}'
    cat <<YAML
---
{apiVersion: v1, kind: Secret, metadata: {name: typed}, type: flexvol/secretfiles, stringData: {file: secret}}
---
{apiVersion: v1, kind: Secret, metadata: {name: opaque}, stringData: {file: secret}}
YAML
    twins owner tmpfs "size: 3Mi, mode: '0751', uid: '7', gid: '8'"
    twins flags tmpfs 'size: 1Mi, mountOptions: "noexec,noatime"'
    # Without flags: of a read-only volume, runc loses them on its way into the container.
    twins reader tmpfs 'size: 1Mi' '' 'readOnly: true'
    spec=$group twins group tmpfs 'size: 1Mi'
    twins secret secretfiles '' typed
    spec=$group twins bound bind 'source: /var/lib/volumes/bound'
    spec=$group twins disk image 'file: {way}.img, size: 320Mi' '' 'fsType: xfs'
    twins option tmpfs 'sise: 16Mi'
    twins value tmpfs 'size: nonsense'
    twins forbidden bind 'source: /etc'
    twins keyless secretfiles ''
    twins absent secretfiles '' absent
    twins typed secretfiles '' opaque
}

# both FLEX CSI: one text if they are the same, else the two.
both() {
    if [[ $1 == "$2" ]]; then echo "$1"; else printf 'flex: %s\ncsi: %s\n' "$1" "$2"; fi
}
# alike NAME: what both have seen.
alike() { both "$(said_by "flex-$1")" "$(said_by "csi-$1")"; }
# alike_event NAME: the words of both Events, without what each way begins with.
alike_event() { both "$(event "flex-$1" FailedMount | words)" "$(event "csi-$1" FailedMount | words)"; }
words() { sed -E 's/^MountVolume.SetUp failed for volume "v" : //; s/^rpc error: code = [A-Za-z]+ desc = //'; }
