#!/usr/bin/env bash
# What needs another kernel, or a capability that a container's root may lack (CAP_SYS_RESOURCE, to
# grow a mounted ext4).
chapter "images"
mkdir -p /tmp/images
install_driver image '{"policy":{"imageRoots":["/tmp/images"]}}'

size_of() {
    stat -f -c '%b %S' "$1" | awk '{print ($1 * $2 > 440000000 ? "grown" : "small")}'
}

says "guest: $(uname -r): the whole life of three volumes" '*0 failures, nothing left behind*' ./flexvol try
for kind in ext4 xfs btrfs; do
    at=$(target "$kind" image)
    options='"file":"'$kind'.img","kubernetes.io/fsType":"'$kind'"'
    grow=("$PLUGINS/example~image/image" expandfs "{$options}" '' "$at")
    says "guest: $kind: mount" "$ok" set_up "$kind" image "$options"',"size":"320Mi"'
    says "guest: $kind: before" small size_of "$at"
    says "guest: $kind: written" '' in_volume "$kind" image write data data
    says "guest: $kind: grow while mounted" "$ok" "${grow[@]}" 536870912 335544320
    says "guest: $kind: after" grown size_of "$at"
    says "guest: $kind: grow again" "$ok" "${grow[@]}" 536870912 335544320
    says "guest: $kind: never shrink" '*cannot shrink*' "${grow[@]}" 335544320 536870912
    says "guest: $kind: unmount" "$ok" tear_down "$kind" image
    says "guest: $kind: mount again" "$ok" set_up "$kind" image "$options"
    says "guest: $kind: data" data cat "$at/data"
    says "guest: $kind: unmount again" "$ok" tear_down "$kind" image
done
# An erofs that has its data on /dev/loop7, as its table of devices says: this kernel (6.1) opens
# what that names.
elsewhere() {
    echo 'of another tenant' >/tmp/tenant && truncate -s 64K /tmp/tenant && losetup /dev/loop7 /tmp/tenant || return
    base64 -d <<'IMAGE' | gunzip >/tmp/images/elsewhere
H4sIAAAAAAACA2NgGAWjYBSMVPDo4dcHIJoJiHkYNMA0CDAiqWHErR1DigcqzEmk/fopqWX6Ofn5BeYD438WIH7ryAT0OQT8BwJkeZi4CgNCjS
qQrQ1lqwP9qqenl4bLfA4gXtIIDCYBCF8BI9AYRxPhKBgFo2AUjIJRMApGwSigGwAAXMy8yQAQAAA=
IMAGE
}
says "guest: erofs: its data is on another device" '' quietly elsewhere
says "guest: erofs: the kernel shows what is there" 'of another tenant' sh \
    -c 'mkdir /tmp/seen && mount -o loop,ro /tmp/images/elsewhere /tmp/seen && head -n 1 /tmp/seen/f; umount /tmp/seen'
says "guest: erofs: it is refused" '*parts of it are on other devices*' \
    set_up elsewhere image '"file":"elsewhere","kubernetes.io/readwrite":"ro"'
says "guest: erofs: the other device is free" '' losetup --detach /dev/loop7
says "guest: no loop device is left" '' losetup --all
