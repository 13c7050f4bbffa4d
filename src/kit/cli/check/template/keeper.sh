#!/usr/bin/env -S -i -C / PATH=/usr/sbin:/usr/bin:/sbin:/bin sh
# shellcheck shell=dash disable=SC2016,SC2086 # a program for awk, and words that are safe to split
# A FlexVolume driver that keeps a process for each mount, as FUSE drivers do, for copying: a tmpfs,
# and a sleep where the file system's server would be. tmpfs.sh explains the frame. Needs
# util-linux, awk, and procps.
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

# A number of the directory is in the arguments of its server, so that it is found again without a
# file that may be lost, or name a process that is another by now. sleep adds it to infinity.
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

# A session of its own, and no descriptor of ours: kubelet reads until the last holder of the
# answer's pipe is gone, and the lock is as long held. Where systemd rules, systemd-run --scope
# keeps it alive when kubelet is restarted. setsid does not tell whether the program could be
# started.
start() { pgrep -f "$server\$" || { command -v "${server%% *}" && setsid -f $server 3>&- 9>&-; }; }

# Until none is left.
stop() { while pkill -KILL -f "$server\$"; do sleep 0.01; done; }

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
    access = value("kubernetes.io/readwrite", "rw")
    if (access !~ /^r[ow]$/) fail("kubernetes.io/readwrite: must be ro or rw")
    print access
}'

mount_volume() {
    [ $# = 2 ] || fail "mount takes a directory and the options"
    access=$(awk "$parse" <<END
$2
END
) || fail "awk does not work"
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
