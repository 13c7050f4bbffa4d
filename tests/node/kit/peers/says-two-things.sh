#!/bin/sh
# With the faults of fq/lizardfs, in our own words: ends without a word if the volume is mounted
# already; where nothing is mounted, unmount prints a failure and then a success.
say() { echo "{\"status\":\"$1\",\"message\":\"$2\"}"; }

# Once for all options: jq takes longer to begin than all the rest.
read_all() { echo "$1" | jq -r 'to_entries[] | "\(.key)=\(.value // empty)"'; }
option() { printf '%s\n' "$all" | sed -n "s|^$1=||p"; }

mount_share() {
    if mountpoint -q "$dir"; then
        exit 0
    fi
    if ! sh @SHARE@ -o "username=mfs,$(option kubernetes.io/readwrite)" "//$(option host)/$(option folder)" "$dir" \
        >/dev/null 2>&1; then
        say Failed "could not mount"
        exit 1
    fi
    say Success
}

unmount_share() {
    umount "$dir" 2>/dev/null || say Failed "could not unmount $dir" >&2
    rmdir "$dir" 2>/dev/null
    say Success
}

dir=$2 all=
if [ $# -gt 2 ]; then all=$(read_all "$3"); fi
case $1 in
init) echo '{"status":"Success","capabilities":{"attach":false,"selinuxRelabel":false}}' ;;
mount) mount_share ;;
unmount) unmount_share ;;
*) say "Not supported" ;;
esac
