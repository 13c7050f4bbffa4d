#!/bin/sh
# With the faults of fstab/cifs, in our own words: what is mounted already, or not mounted any more,
# is a failure; failures end with exit status 1; other verbs get a usage text; the share is writable
# whatever the pod asked for.
err() { echo "$*" 1>&2; }

fail() {
    echo "{\"status\": \"Failure\", \"message\": \"$*\"}"
    exit 1
}

# Once for all options: jq takes longer to begin than all the rest.
read_all() { echo "$1" | jq -r 'to_entries[] | "\(.key)=\(.value // empty)"'; }
option() { printf '%s\n' "$all" | sed -n "s|^$1=||p"; }

case $1 in
init)
    echo '{"status": "Success", "capabilities": {"attach": false}}'
    ;;
mount)
    dir=$2 all=$(read_all "$3")
    user=$(option kubernetes.io/secret/username | base64 -d)
    PASSWD=$(option kubernetes.io/secret/password | base64 -d)
    export PASSWD
    [ -n "$user" ] || fail "username not found in secret"
    [ -n "$PASSWD" ] || fail "password not found in secret"
    mountpoint -q "$dir" && fail "$dir is already a mount point"
    said=$(sh @SHARE@ -o "username=$user,$(option mountOptions)" "$(option networkPath)" "$dir" 2>&1) || fail "$said"
    echo '{"status": "Success"}'
    ;;
unmount)
    mountpoint -q "$2" || fail "$2 is not a mount point"
    said=$(umount "$2" 2>&1) || fail "$said"
    echo '{"status": "Success"}'
    ;;
*)
    err "usage: $0 init"
    err "       $0 mount <directory> <json>"
    err "       $0 unmount <directory>"
    exit 1
    ;;
esac
