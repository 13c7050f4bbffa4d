#!/bin/sh
# With the faults of the lvm and loop drivers of several vendors, in our own words: null for
# capabilities, at which kubelet crashes, and which leaves it at attach, although there is nothing
# to attach; a usage text for those verbs.
case $1 in
init)
    echo '{"status":"Success","capabilities":null}'
    ;;
mount)
    if ! mountpoint -q "$2"; then
        sh @SHARE@ -o username=nobody "$(echo "$3" | jq -r .source)" "$2" >/dev/null 2>&1 ||
            { echo '{"status":"Failure","message":"not mounted"}'; exit 1; }
    fi
    echo '{"status":"Success"}'
    ;;
unmount)
    umount "$2" 2>/dev/null
    echo '{"status":"Success"}'
    ;;
*)
    echo "Usage: $0 init|mount|unmount" >&2
    exit 1
    ;;
esac
