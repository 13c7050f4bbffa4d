#!/usr/bin/env -S -i -C / PATH=/usr/sbin:/usr/bin:/sbin:/bin sh
# shellcheck shell=dash disable=SC2016,SC2086 # jq programs, and words that are safe to split
# A FlexVolume driver for copying: memory of the node as a volume. Option "size", such as 64Mi; the secret
# "password", if the pod has one, becomes a file in the volume. Needs jq and util-linux.
#
# env drops kubelet's environment and its working directory: nobody knows what is in either. A shell that is
# started in a directory that was removed complains before its first line.

# Kubelet takes both outputs together for the answer: everything else goes nowhere.
exec 3>&1 </dev/null >/dev/null 2>&1
# No file names from *, no file that others may read.
set -f
umask 077

# Whatever happens, one answer is printed, at the end. The exit status is 0 even then: at any other, kubelet logs
# the arguments, and with them the secrets.
answer='{"status":"Failure","message":"ended before the work was done"}' undo="" made=""
finish() {
    trap '' HUP INT TERM PIPE
    # Kubelet takes a mount that it finds at the next attempt for a success.
    [ -z "$undo" ] || umount -n "$dir"
    [ -z "$made" ] || rmdir "$dir"
    printf '%s\n' "$answer" >&3
    exit 0
}
trap finish EXIT
trap exit HUP INT TERM

succeed() {
    answer='{"status":"Success"}' undo="" made=""
    exit
}

# The reason becomes an Event that the pod's people read: one line, no secret, valid in JSON whatever is in it.
fail() {
    reason=$(printf '%s' "$1" | tr -c ' -~' '?' | cut -c 1-900 | sed 's/["\\]/\\&/g')
    answer="{\"status\":\"Failure\",\"message\":\"$reason\"}"
    exit
}

# Kubelet's directory for a volume and nothing else. Calls for the volumes of one pod wait for each other; the
# kernel gives the lock back when we end, however we end.
take() {
    dir=$1
    case $dir/ in */../* | */./* | *//*) fail "$dir is no plain path" ;; esac
    case $dir in /*/pods/?*/volumes/?*/?*) ;; *) fail "$dir is no directory of kubelet for a volume" ;; esac
    [ ! -L "$dir" ] || fail "$dir is a symbolic link"
    [ -d "${dir%/*}" ] || return
    exec 9<"${dir%/*}"
    flock -w 100 9 || fail "another call for this pod does not end: look for it with ps"
}

# The source of each mount at the directory. The mount table knows; looking at a dead mount may hang.
mounted() { findmnt -nr -o SOURCE --mountpoint "$dir"; }

# One jq for all, because it is slow; -s makes a list, so that a second value is seen. What comes out is safe to
# split: \z is the end, where $ would let a newline through. It cannot see a key that is there twice.
wishes='def must(good; $why): if good then . else error($why) end;
    try (must(length == 1; "the options must be one object") | .[0]
    | must(type == "object" and all(.[]; type == "string"); "the options must be strings in one object")
    | [.size // "16Mi", .["kubernetes.io/readwrite"] // "rw", .["kubernetes.io/secret/password"] // "-"]
    | must(.[0] | test("\\A[1-9][0-9]{0,6}[KMG]i\\z"); "option size: write it like 64Mi")
    | must(.[1] == "ro" or .[1] == "rw"; "kubernetes.io/readwrite: must be ro or rw")
    | must(.[2] | . == "-" or (length % 4 == 0 and test("\\A[A-Za-z0-9+/]+={0,2}\\z")); "secret password: no base64")
    | join(" ")) catch ("error: " + .)'

mount_volume() {
    [ $# = 2 ] || fail "mount takes a directory and the options"
    fields=$(printf '%s' "$2" | jq -rs "$wishes") || fail "the options are no JSON"
    case $fields in error:*) fail "${fields#error: }" ;; esac
    take "$1"
    [ -d "$dir" ] || { mkdir -m 0750 "$dir" && made=yes; } || fail "cannot make $dir"
    set -- $fields
    # The source tells the next call what this one was asked for.
    source=tmpfs.sh:$1:$2
    case $(mounted) in
    "$source") ;; # Kubelet asks again when it lost the answer; what a killed call left undone is done below.
    "") undo=yes
        mount -n -c -i -t tmpfs -o "nosuid,nodev,mode=0777,size=${1%i}" "$source" "$dir" ||
            fail "cannot mount a tmpfs of $1 on $dir" ;;
    *) fail "$dir is mounted already, from elsewhere or with other options: unmount it first" ;;
    esac
    # printf is the shell's own: the secret is in nobody's arguments.
    if [ "$3" != - ] && [ ! -e "$dir/password" ]; then
        printf '%s' "$3" | base64 -d >"$dir/.password" || fail "secret password: cannot be stored in $1"
        mv "$dir/.password" "$dir/password" || fail "secret password: cannot be stored"
    fi
    [ "$2" = rw ] || mount -n -c -i -o remount,bind,ro,nosuid,nodev "$dir" || fail "cannot make $dir read-only"
    succeed
}

# Nothing but the directory is known here, and everything may be gone already.
unmount_volume() {
    [ $# = 1 ] || fail "unmount takes a directory"
    take "$1"
    sources=$(mounted) || succeed
    case $sources in *tmpfs.sh:*) ;; *) fail "what is mounted at $dir is not from this driver" ;; esac
    while mounted; do
        umount -n "$dir" || fail "cannot unmount $dir: somebody uses it, or something is mounted in it"
    done
    succeed
}

verb=${1-}
[ $# = 0 ] || shift
case $verb in
init)
    # All of them: what is left out is true for kubelet, supportsMetrics aside.
    answer='{"status":"Success","capabilities":{"attach":false,"fsGroup":true,"requiresFSResize":false,'
    answer=$answer'"selinuxRelabel":true,"supportsMetrics":true}}' ;;
mount) mount_volume "$@" ;;
unmount) unmount_volume "$@" ;;
*) answer='{"status":"Not supported"}' ;;
esac
