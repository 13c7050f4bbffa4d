#!/usr/bin/env -S -i -C / PATH=/usr/sbin:/usr/bin:/sbin:/bin sh
# shellcheck shell=dash disable=SC2016,SC2086 # jq programs, and words that are safe to split
# A FlexVolume driver that keeps a process for each mount, as FUSE drivers do, for copying: a tmpfs, and a sleep where
# the file system's server would be. tmpfs.sh explains the frame. Needs jq, util-linux and procps.
exec 3>&1 </dev/null >/dev/null 2>&1
set -f
umask 077

answer='{"status":"Failure","message":"ended before the work was done"}' undo=""
finish() {
    trap '' HUP INT TERM PIPE
    [ -z "$undo" ] || { umount -n "$dir"; stop; }
    printf '%s\n' "$answer" >&3
    exit 0
}
trap finish EXIT
trap exit HUP INT TERM

succeed() {
    answer='{"status":"Success"}' undo=""
    exit
}

fail() {
    reason=$(printf '%s' "$1" | tr -c ' -~' '?' | cut -c 1-900 | sed 's/["\\]/\\&/g')
    answer="{\"status\":\"Failure\",\"message\":\"$reason\"}"
    exit
}

# A number of the directory is in the arguments of its server, so that it is found again without a file that may be
# lost, or name a process that is another by now. sleep adds it to infinity.
take() {
    dir=$1
    case $dir/ in */../* | */./* | *//*) fail "$dir is no plain path" ;; esac
    case $dir in /*/pods/?*/volumes/?*/?*) ;; *) fail "$dir is no directory of kubelet for a volume" ;; esac
    [ ! -L "$dir" ] || fail "$dir is a symbolic link"
    server="sleep infinity 0x$(printf '%s' "$dir" | sha256sum | cut -c 1-40)"
    [ -d "${dir%/*}" ] || return
    exec 9<"${dir%/*}"
    flock -w 100 9 || fail "another call for this pod does not end: look for it with ps"
}

mounted() { findmnt -nr -o SOURCE --mountpoint "$dir"; }

# A session of its own, and no descriptor of ours: kubelet reads until the last holder of the answer's pipe is gone,
# and the lock is as long held. Where systemd rules, systemd-run --scope keeps it alive when kubelet is restarted.
start() { pgrep -f "$server\$" || setsid -f $server 3>&- 9>&-; }

# Until none is left.
stop() { while pkill -KILL -f "$server\$"; do sleep 0.01; done; }

wishes='def must(good; $why): if good then . else error($why) end;
    try (must(length == 1; "the options must be one object") | .[0]
    | must(type == "object" and all(.[]; type == "string"); "the options must be strings in one object")
    | .["kubernetes.io/readwrite"] // "rw"
    | must(. == "ro" or . == "rw"; "kubernetes.io/readwrite: must be ro or rw")) catch ("error: " + .)'

mount_volume() {
    [ $# = 2 ] || fail "mount takes a directory and the options"
    access=$(printf '%s' "$2" | jq -rs "$wishes") || fail "the options are no JSON"
    case $access in error:*) fail "${access#error: }" ;; esac
    take "$1"
    [ -d "$dir" ] || mkdir -m 0750 "$dir" || fail "cannot make $dir"
    case $(mounted) in
    "keeper.sh:$access") ;;
    "") undo=yes
        mount -n -c -i -t tmpfs -o "$access,nosuid,nodev,mode=0777,size=16M" "keeper.sh:$access" "$dir" ||
            fail "cannot mount on $dir" ;;
    *) fail "$dir is mounted already, from elsewhere or with other options: unmount it first" ;;
    esac
    start || fail "the server does not start"
    succeed
}

# The server goes even if nothing is mounted: a call may have been killed between the two.
unmount_volume() {
    [ $# = 1 ] || fail "unmount takes a directory"
    take "$1"
    if sources=$(mounted); then
        case $sources in *keeper.sh:*) ;; *) fail "what is mounted at $dir is not from this driver" ;; esac
    fi
    while mounted; do
        umount -n "$dir" || fail "cannot unmount $dir: somebody uses it, or something is mounted in it"
    done
    stop
    succeed
}

verb=${1-}
[ $# = 0 ] || shift
case $verb in
init)
    answer='{"status":"Success","capabilities":{"attach":false,"fsGroup":true,"requiresFSResize":false,'
    answer=$answer'"selinuxRelabel":false,"supportsMetrics":true}}' ;;
mount) mount_volume "$@" ;;
unmount) unmount_volume "$@" ;;
*) answer='{"status":"Not supported"}' ;;
esac
