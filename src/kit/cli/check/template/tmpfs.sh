#!/usr/bin/env -S -i -C / PATH=/usr/sbin:/usr/bin:/sbin:/bin sh
# shellcheck shell=dash disable=SC2016,SC2086 # a program for awk, and words that are safe to split
# A FlexVolume driver for copying: memory of the node as a volume. Option "size", such as 64Mi; the
# secret "password", if the pod has one, becomes a file in the volume. Needs util-linux and awk.
#
# env drops kubelet's environment and its working directory: no one knows what is in either. A shell
# that is started in a directory that was removed complains before its first line.

# Kubelet takes both outputs together for the answer: everything else goes nowhere.
exec 3>&1 </dev/null >/dev/null 2>&1
# No file names from *, no file that others may read.
set -f
umask 077

# Whatever happens, one answer is printed, at the end. The exit status is 0 even then: at any other,
# kubelet logs the arguments, and with them the secrets.
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

# The reason becomes an Event that the pod's people read: one line, no secret, valid in JSON
# whatever is in it.
fail() {
    reason=$(printf '%s' "$1" | tr -c ' -~' '?' | cut -c 1-900 | sed 's/["\\]/\\&/g')
    answer="{\"status\":\"Failure\",\"message\":\"$reason\"}"
    exit
}

# Kubelet's directory for a volume and nothing else. Calls for the volumes of one pod wait for each
# other; the kernel gives the lock back when we end, however we end.
take() {
    dir=$1
    case $dir/ in */../* | */./* | *//*) fail "$dir is no plain path" ;; esac
    case $dir in /*/pods/?*/volumes/?*/?*) ;; *) fail "$dir is no directory of kubelet for a volume" ;; esac
    [ ! -L "$dir" ] || fail "$dir is a symbolic link"
    [ -d "${dir%/*}" ] || return
    exec 9<"${dir%/*}"
    flock -w 100 9 || fail "another call for this pod does not end: look for it with ps"
}

# The source of each mount at the directory. The mount table knows; looking at a dead mount may
# hang.
mounted() { findmnt -nr -o SOURCE --mountpoint "$dir"; }

# The options: one object of strings in JSON, and nothing else. awk is everywhere and quick; jq
# reads more than this, but takes ten times as long and is missing on many nodes. Of escapes only
# those of ASCII matter to us.
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
    size = value("size", "16Mi")
    if (size !~ /^[1-9][0-9]*[KMG]i$/ || length(size) > 9) fail("option size: write it like 64Mi")
    access = value("kubernetes.io/readwrite", "rw")
    if (access !~ /^r[ow]$/) fail("kubernetes.io/readwrite: must be ro or rw")
    password = value("kubernetes.io/secret/password", "-")
    if (password != "-" && (password !~ /^[A-Za-z0-9+\/]+=?=?$/ || length(password) % 4 != 0))
        fail("secret password: must be base64, and not empty")
    print size, access, password
}'

mount_volume() {
    [ $# = 2 ] || fail "mount takes a directory and the options"
    fields=$(awk "$parse" <<END
$2
END
) || fail "awk does not work"
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
    # printf is the shell's own: the secret is in no one's arguments.
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
