#!/bin/sh
# With the faults of Azure's blobfuse and smb, in our own words: what is left in the directory at
# unmount is removed, and the directory with it, with no look at what it is; a verb it does not know
# gets a usage text.
log=/var/log/removes-all.log

usage() {
    echo "Invalid usage. Usage: " >&2
    echo "  $0 init" >&2
    echo "  $0 mount <mount dir> <json params>" >&2
    echo "  $0 unmount <mount dir>" >&2
    exit 1
}

fail() {
    echo "$(date) failed: $1" >>$log
    echo "{ \"status\": \"Failure\", \"message\": \"$1\" }"
    exit 1
}

# Once for all options: jq takes longer to begin than all the rest.
read_all() { echo "$1" | jq -r 'to_entries[] | "\(.key)=\(.value // empty)"'; }
option() { printf '%s\n' "$all" | sed -n "s|^$1=||p"; }

mount_share() {
    if mountpoint -q "$dir"; then
        echo '{"status": "Success"}'
        exit 0
    fi
    said=$(sh @SHARE@ -o "username=$(option kubernetes.io/secret/username | base64 -d),$(option mountoptions)" \
        "$(option source)" "$dir" 2>&1) || fail "$said"
    echo '{"status": "Success"}'
}

unmount_share() {
    # The others have no such line. Without it, a test of this would be a risk for whoever runs it.
    case $dir in */../* | */..) fail "$dir?" ;; */pods/*/volumes/*/*) ;; *) fail "$dir?" ;; esac
    # It is busy at times; then it is freed by removing everything in it.
    exec 2>>$log
    rm -rf "${dir:?}"/*
    umount "$dir"
    rm -rf "${dir:?}"
    echo '{"status": "Success"}'
}

case $1 in
init)
    echo '{"status": "Success", "capabilities": {"attach": false, "fsGroup": false}}'
    exit 0
    ;;
mount | unmount) ;;
*) usage ;;
esac
[ $# -ge 2 ] || usage
dir=$2 all=
if [ $# -gt 2 ]; then all=$(read_all "$3"); fi
"$1_share"
