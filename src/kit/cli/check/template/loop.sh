#!/usr/bin/env -S -i -C / PATH=/usr/sbin:/usr/bin:/sbin:/bin sh
# shellcheck shell=dash disable=SC2015,SC2016 # a && b || fail, and a program for awk
# A FlexVolume driver that attaches, for copying: option "file" is an image below
# /var/lib/loop-volumes, made with option "size" where it is missing, and a loop device over it is
# the disk. tmpfs.sh explains the frame. Needs awk, util-linux and e2fsprogs, and all calls on one
# machine.
exec 3>&1 </dev/null >/dev/null 2>&1
set -f
umask 077
images=/var/lib/loop-volumes

answer='{"status":"Failure","message":"ended before the work was done"}' undo=""
finish() {
    trap '' HUP INT TERM PIPE
    [ -z "$undo" ] || umount -n "$dir"
    printf '%s\n' "$answer" >&3
    exit 0
}
trap finish EXIT
trap exit HUP INT TERM

succeed() {
    answer="{\"status\":\"Success\"${1-}}" undo=""
    exit
}

fail() {
    reason=$(printf '%s' "$1" | tr -c ' -~' '?' | cut -c 1-900 | sed 's/["\\]/\\&/g')
    answer="{\"status\":\"Failure\",\"message\":\"$reason\"}"
    exit
}

count() { [ "$1" = "$2" ] || fail "$verb takes $2 arguments, not $1"; }

parse='
function hex(digit) { return index("123456789abcdef", tolower(digit)) }
function string(    raw, text, at, code) {
    match(all, quoted)
    raw = substr(all, 2, RLENGTH - 2)
    all = substr(all, RLENGTH + 1)
    sub(/^[ \t\r\n:,]*/, "", all)
    while ((at = index(raw, "\\")) > 0) {
        code = substr(raw, at + 1, 5)
        text = text substr(raw, 1, at - 1)
        if (code ~ /^u00/) text = text sprintf("%c", 16 * hex(substr(code, 4, 1)) + hex(substr(code, 5, 1)))
        else text = text (code ~ /^["\\\/]/ ? substr(code, 1, 1) : "?")
        raw = substr(raw, at + (code ~ /^u/ ? 6 : 2))
    }
    return text raw
}
function fail(why) { print "error: " why; exit }
function value(key, otherwise) { return key in given ? given[key] : otherwise }
{ all = all $0 "\n" }
END {
    s = "[ \t\r\n]*"
    x = "[0-9A-Fa-f]"
    quoted = "\"([^\"\\\\\001-\037]|\\\\([\"\\\\/bfnrt]|u" x x x x "))*\""
    pair = quoted s ":" s quoted s
    if (all !~ "^" s "[{]" s "(" pair "(," s pair ")*)?[}]" s "$") fail("the options must be strings in one object")
    sub("^" s "[{]" s, "", all)
    while (all ~ /^"/) {
        key = string()
        if (key in given) fail("an option is there twice")
        given[key] = string()
    }
    file = value("file", "")
    if (file !~ /^[a-z0-9][a-z0-9._-]*$/ || length(file) > 100)
        fail("option file: must be a plain name of a-z, 0-9, . _ -")
    size = value("size", "16Mi")
    if (size !~ /^[1-9][0-9]*[MG]i$/ || length(size) > 6) fail("option size: write it like 64Mi")
    access = value("kubernetes.io/readwrite", "rw")
    if (access !~ /^r[ow]$/) fail("kubernetes.io/readwrite: must be ro or rw")
    type = value("kubernetes.io/fsType", "")
    if (type !~ /^(ext[234])?$/) fail("fsType: must be ext4, ext3 or ext2")
    volume = value("kubernetes.io/pvOrVolumeName", "")
    if (volume !~ /^[a-z0-9][a-z0-9.-]*$/) fail("kubernetes.io/pvOrVolumeName: must be a name")
    print file, size, access, type == "" ? "ext4" : type, volume
}'
# Sets image, size, access, type and volume.
wish() {
    fields=$(awk "$parse" <<END
$1
END
) || fail "awk does not work"
    case $fields in error:*) fail "${fields#error: }" ;; esac
    read -r image size access type volume <<END
$images/$fields
END
}

# The image, there and locked: the kernel gives the lock back when we end, however we end.
hold() {
    [ -d "$images/attached" ] || mkdir -p "$images/attached"
    exec 9>>"$image"
    flock -w 100 9 || fail "another call for ${image##*/} does not end: look for it with ps"
    [ -s "$image" ] || truncate -s "${size%i}" "$image" || fail "cannot make ${image##*/}"
}

# The loop device over the image, if there is one.
device() { losetup -nO NAME -j "$image"; }

# detach gets the name of the volume and nothing else: what it means is written down here, as a
# link, which is there whole or not at all.
attach() {
    count $# 2
    wish "$1"
    hold
    [ -L "$images/attached/$volume" ] || ln -s "$2:${image##*/}" "$images/attached/$volume"
    record=$(readlink "$images/attached/$volume")
    [ "$record" = "$2:${image##*/}" ] || fail "$volume is attached as $record: detach it there first"
    take_device
}

# Before every mount, long after the attach or after a reboot. Kubelet forgets a device that is not
# in the answer.
wait_for_attach() {
    count $# 2
    wish "$2"
    hold
    take_device
}

take_device() {
    found=$(device)
    [ -n "$found" ] || found=$(losetup -f --show "$image") || fail "no loop device for ${image##*/}"
    succeed ",\"device\":\"$found\""
}

detach() {
    count $# 2
    case $1 in */* | .*) fail "$1 is no name of a volume" ;; esac
    record=$(readlink "$images/attached/$1") || succeed
    [ "${record%%:*}" = "$2" ] || succeed
    image=$images/${record#*:}
    for found in $(device); do losetup -d "$found" || fail "cannot take $found away"; done
    gone
    rm "$images/attached/$1"
    succeed
}

# Whoever has the device open, udev for a moment or a mount for long, keeps it until that ends: the
# next attach must not find it then.
gone() {
    tries=100
    while [ -n "$(device)" ]; do
        [ $((tries -= 1)) -gt 0 ] || fail "$found is still in use: look for its mount with findmnt"
        sleep 0.1
    done
}

is_attached() {
    count $# 2
    wish "$1"
    [ "$(readlink "$images/attached/$volume")" = "$2:${image##*/}" ] && [ -n "$(device)" ] &&
        succeed ',"attached":true'
    succeed ',"attached":false'
}

# A directory of kubelet for a volume: a pod's, or the node's global one.
take() {
    dir=$1
    case $dir/ in */../* | */./* | *//*) fail "$dir is no plain path" ;; esac
    case $dir in
    /*/pods/?*/volumes/?*/?* | /*/plugins/kubernetes.io/flexvolume/?*/?*/mounts/?*) ;;
    *) fail "$dir is no directory of kubelet for a volume" ;;
    esac
    [ ! -L "$dir" ] || fail "$dir is a symbolic link"
    [ -d "${dir%/*}" ] || return
    exec 8<"${dir%/*}"
    flock -w 100 8 || fail "another call for $dir does not end: look for it with ps"
}

mounted() { findmnt -nr -o SOURCE --mountpoint "${1-$dir}"; }

# The device may be left out. Nothing is formatted but what is blank: no signature, and zeros where
# one would be.
mount_device() {
    count $# 3
    wish "$3"
    hold
    found=$(device)
    [ -n "$found" ] || fail "${image##*/} is not attached"
    take "$1"
    case $(mounted) in "$found") succeed ;; ?*) fail "$dir is mounted already, from elsewhere" ;; esac
    [ -d "$dir" ] || mkdir -m 0750 "$dir" || fail "cannot make $dir"
    blkid -p "$found"
    if [ $? = 2 ] && cmp -s -n 1048576 "$found" /dev/zero; then
        [ "$access" = rw ] || fail "${image##*/} is blank and must not be written to"
        "mkfs.$type" -q "$found" || fail "cannot make an $type on $found"
    fi
    undo=yes
    mount -n -c -i -t "$type" -o "$access,nosuid,nodev" "$found" "$dir" || fail "cannot mount $found as $type"
    succeed
}

# The pod gets the same file system, read-only or not as it was asked for.
mount_volume() {
    count $# 2
    wish "$2"
    take "$1"
    driver=${dir%/*}
    driver=${driver##*/}
    global=${dir%/pods/?*/volumes/?*/?*}/plugins/kubernetes.io/flexvolume/${driver%~*}/${driver##*~}/mounts/${dir##*/}
    found=$(device)
    [ -n "$found" ] && [ "$(mounted "$global")" = "$found" ] || fail "${image##*/} is not mounted at $global"
    [ -d "$dir" ] || mkdir -m 0750 "$dir" || fail "cannot make $dir"
    case $(mounted) in
    "$found") [ "$access" = ro ] || findmnt -O rw --mountpoint "$dir" || fail "$dir is mounted already, read-only" ;;
    "") undo=yes && mount -n -c -i --bind "$global" "$dir" || fail "cannot bind $global to $dir" ;;
    *) fail "$dir is mounted already, from elsewhere" ;;
    esac
    [ "$access" = rw ] || mount -n -c -i -o remount,bind,ro,nosuid,nodev "$dir" || fail "cannot make $dir read-only"
    succeed
}

# Of a pod's directory and of the global one. Only what lies on our images is ours.
unmount() {
    count $# 1
    take "$1"
    sources=$(mounted) || succeed
    for found in $sources; do
        case $(losetup -nO BACK-FILE "$found") in "$images"/*) ours=yes ;; esac
    done
    [ -n "${ours-}" ] || fail "what is mounted at $dir is not from this driver"
    while mounted; do
        umount -n "$dir" || fail "cannot unmount $dir: somebody uses it, or something is mounted in it"
    done
    succeed
}

# expandvolume is never called: whoever grows the file system grows the disk below it too.
expand() {
    count $# 5
    case $4$5 in *[!0-9]*) fail "sizes must be numbers" ;; esac
    [ "$4" -ge "$5" ] || fail "cannot shrink from $5 to $4 bytes"
    wish "$1"
    hold
    found=$(device)
    [ -n "$found" ] || fail "${image##*/} is not attached"
    [ "$(stat -c %s "$image")" -ge "$4" ] || truncate -s "$4" "$image" || fail "cannot grow ${image##*/}"
    losetup -c "$found" && resize2fs "$found" || fail "cannot grow the file system on $found"
    succeed
}

verb=${1-}
[ $# = 0 ] || shift
case $verb in
init)
    answer='{"status":"Success","capabilities":{"attach":true,"fsGroup":true,"requiresFSResize":true,'
    answer=$answer'"selinuxRelabel":true,"supportsMetrics":true}}' ;;
attach) attach "$@" ;;
waitforattach) wait_for_attach "$@" ;;
isattached) is_attached "$@" ;;
detach) detach "$@" ;;
mountdevice) mount_device "$@" ;;
mount) mount_volume "$@" ;;
unmount | unmountdevice) unmount "$@" ;;
expandfs) expand "$@" ;;
*) answer='{"status":"Not supported"}' ;;
esac
