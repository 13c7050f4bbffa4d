#!/usr/bin/env bash
# Drivers that each do one odd thing, in a verb other than mount. Sourced by the chapter replies.

# What is odd, as a branch of the driver's `case`. The rest of each is as it should be. `first VERB`
# is true of the first such call; `say TEXT` is a Failure. A name that begins with disk- attaches,
# with grow- grows.
# shellcheck disable=SC2016 # they are for the drivers
declare -A CALLS=(
    [plain]='mount) echo mounts >>/run/replies.order; mount -t tmpfs tmpfs "$2"; echo "$ok" ;;'
    [unmount-lies]='unmount) echo "$ok" ;;'
    [unmount-file]='unmount) umount "$2"; echo x >"$2/file"; echo "$ok" ;;'
    [unmount-noise]='unmount) umount "$2" || { say "not mounted"; exit; }; first unmount && echo noise; echo "$ok" ;;'
    [unmount-gone]=''
    [unmount-inside]='unmount) umount "$2" || { say "busy"; exit; }; rmdir "$2"; echo "$ok" ;;'
    [dead]='mount) mkdir -p /run/replies.data; rclone mount /run/replies.data "$2" --daemon --config /dev/null \
            --cache-dir /run/replies.cache </dev/null >/dev/null; echo "$ok" ;;'
    [leaves]='mount) mount -t tmpfs tmpfs "$2"; mkdir -p /run/replies.left; mount -t tmpfs left /run/replies.left
        sleep 600 </dev/null >/dev/null & echo $! >/run/replies.leaves.pid; echo "$ok" ;;'
    [writable]='mount) mount -t tmpfs tmpfs "$2"; echo "$ok" ;;'
    [read-only]='mount) mount -t tmpfs -o ro tmpfs "$2"; echo "$ok" ;;'
    [runs]='mount) mount -t tmpfs tmpfs "$2"; tr "\000" "\n" </proc/$$/environ | sort >/run/replies.runs.environment
        readlink /proc/$$/fd/0 >/run/replies.runs.input; ps -o pgid=,sid= -p $$ >/run/replies.runs.group
        [ -d "$2" ] && echo there >/run/replies.runs.directory; echo "$ok" ;;'
    [long]='mount) mount -t tmpfs tmpfs "$2"; echo "${#3}" >/run/replies.long.length; echo "$ok" ;;'
    [secret]='mount) secret=$(echo "$3" | sed "s|.*\"kubernetes.io/secret/key\":\"\([^\"]*\)\".*|\1|" | base64 -d)
        [ "${3#*\"say\"}" = "$3" ] || { say "wrong password $secret"; exit; }
        mount -t tmpfs "$secret" "$2"; echo "$secret" >/run/replies.secret.file
        PASSWORD=$secret sh -c "sleep 600; exit" "$secret" </dev/null >/dev/null &
        echo $! >/run/replies.secret.pid; echo "$ok" ;;'
    [init-slow]='init) first init && { echo begins >>/run/replies.order; sleep 4
            echo ends >>/run/replies.order; }; echo "$init" ;;'
    [init-writes]='init) echo x >"${0%/*}/note"; echo "$init" ;;'
    [init-fails]='init) [ -e /run/replies.network ] || { say "no network"; exit; }; echo "$init" ;;'
    [beside]='mount) mount -t tmpfs tmpfs "$2"; mkdir -p "$2/../side"; echo "$ok" ;;'
    [late]='mount) trap "echo closed >>/run/replies.late.closed" PIPE; once "$2" && sleep 15
        mount -t tmpfs tmpfs "$2"; echo "$ok" ;;'
    [cut]='mount) lock=/run/replies.cut.$(echo "$2" | cut -d / -f 6); mkdir "$lock" || { say "locked"; exit; }
        echo $$ >>/run/replies.pids; sleep 30; mount -t tmpfs tmpfs "$2"; rmdir "$lock"; echo "$ok" ;;'
    [away]='unmount) first unmount && { echo $$ >>/run/replies.pids; umount "$2"; sleep 30; }
        umount "$2"; rmdir "$2"; echo "$ok" ;;'
    [disk-verbs]='getvolumename) say "what is that" ;;'
    [disk-twice]='attach) first attach && echo noise; echo "$device" ;;'
    [disk-nameless]='attach | waitforattach) echo "$ok" ;;'
    [disk-detach]='detach) first detach && echo noise; echo "$ok" ;;'
    [disk-unattached]='isattached) echo "$ok" ;;'
    [disk-wait]='waitforattach) say "no such device" ;;'
    [disk-hung]='waitforattach) echo $$ >>/run/replies.pids; trap "" TERM; while :; do sleep 10; done ;;'
    [disk-late]='mountdevice) mkdir -p "$2"; first mountdevice && sleep 15; mount -t tmpfs disk-late "$2"; echo "$ok" ;;
        unmountdevice) umount "$2"; echo "$ok" ;;'
    [disk-fails]='mountdevice) mkdir -p "$2"; mount -t tmpfs disk-fails "$2"; say "no" ;;'
    [disk-stays]='unmountdevice) echo "$ok" ;;'
    [disk-noise]='unmountdevice) umount "$2" || { say "not mounted"; exit; }; first unmountdevice && echo noise
        echo "$ok" ;;'
    [disk-busy]='unmountdevice) umount "$2" || { say "busy"; exit; }; echo "$ok" ;;'
    [disk-held]='attach) echo "{\"status\":\"Success\",\"device\":\"$(losetup --find --show /run/replies.disk)\"}" ;;
        waitforattach) echo "{\"status\":\"Success\",\"device\":\"$2\"}" ;;
        mountdevice) mkdir -p "$2"; echo "$3" >/run/replies.device; mount -t tmpfs disk-held "$2"; echo "$ok" ;;
        unmountdevice) umount "$2"; hold "$(cat /run/replies.device)" </dev/null >/dev/null & sleep 1; echo "$ok" ;;
        detach) losetup --associated /run/replies.disk | cut -d : -f 1 | xargs -r losetup --detach; echo "$ok" ;;'
    [disk-elsewhere]='mountdevice) mkdir -p "$2" /run/replies.elsewhere; mount -t tmpfs elsewhere "$2"
        mount --bind "$2" /run/replies.elsewhere; echo "$ok" ;;'
    [grow-twice]='expandfs) first expandfs && echo noise; echo "$ok" ;;'
    [grow-lacks]='expandfs) echo "{\"status\":\"Not supported\"}" ;;'
)

# driver NAME: prints it.
driver_text() {
    local attach=false resize=
    [[ $1 != disk-* ]] || attach=true
    [[ $1 != grow-* ]] || resize=',"requiresFSResize":true'
    cat <<SH
#!/bin/sh
exec 2>/dev/null
{ printf '%s\t' "\$@"; echo; } >>/run/replies.$1
ok='{"status":"Success"}' device='{"status":"Success","device":"/dev/replies"}'
init='{"status":"Success","capabilities":{"attach":$attach$resize}}'
say() { echo "{\"status\":\"Failure\",\"message\":\"\$1\"}"; }
first() { [ "\$(grep -c "^\$1	" /run/replies.$1)" = 1 ]; }
hold() { exec python3 -c 'import os, sys, time; os.open(sys.argv[1], os.O_RDONLY | os.O_EXCL); time.sleep(12)' "\$1"; }
once() { [ "\$(grep -cF "mount	\$1	" /run/replies.$1)" = 1 ]; }
case \$1 in
${CALLS[$1]}
init) echo "\$init" ;;
mount) [ $attach = false ] && mount -t tmpfs tmpfs "\$2" && echo "\$ok" || echo '{"status":"Not supported"}' ;;
unmount) umount "\$2"; rmdir "\$2"; echo "\$ok" ;;
attach | waitforattach) [ $attach = true ] && echo "\$device" || echo '{"status":"Not supported"}' ;;
isattached) echo '{"status":"Success","attached":true}' ;;
detach) echo "\$ok" ;;
mountdevice) mkdir -p "\$2"; mount -t tmpfs "$1" "\$2"; echo "\$ok" ;;
unmountdevice) umount "\$2"; rmdir "\$2"; echo "\$ok" ;;
*) echo '{"status":"Not supported"}' ;;
esac
SH
}

# install_odd: all of them. Those that attach are where the controllers look, too.
install_odd() {
    local name
    for name in "${!CALLS[@]}"; do
        driver_text "$name" | scripted node-1 "replies/$name"
        [[ $name != disk-* ]] || driver_text "$name" | scripted world "replies/$name"
    done
}

# made NAME VERB [PLACE]: how often it was called so. sent: the first of these calls.
made() { on "${3:-node-1}" grep -c "^$2"$'\t' "/run/replies.$1"; }
sent() { on "${3:-node-1}" grep -m 1 "^$2"$'\t' "/run/replies.$1" | tr '\t' ' '; }
at_least() { [[ $(made "${@:2}") -ge $1 ]]; }
# repeated COUNT NAME VERB [PLACE]: says so when there were so many calls.
repeated() {
    if eventually "${patience:-30}" at_least "$@"; then echo again; else echo "only $(made "${@:2}")"; fi
}

# phase POD: of a pod that is there.
phase() { k get pod "$1" -o 'jsonpath={.metadata.deletionTimestamp} {.status.phase}'; }
uid() { k get pod "$1" -o 'jsonpath={.metadata.uid}'; }
# directory POD: of its volume.
directory() { echo "/var/lib/kubelet/pods/$(uid "$1")/volumes/replies~${2:-$1}/v"; }
# stays COUNT NAME VERB: the call is made again and again, and the pod never ends.
stays() {
    repeated "$@"
    [[ $(phase "$2") == 20* ]] && echo "and the pod stays"
}
# log TEXT: what kubelet has said with it, last.
kubelet_says() {
    eventually "${patience:-20}" grep -qF -- "$1" "$CLUSTER/log/node-1-kubelet.log"
    grep -F -- "$1" "$CLUSTER/log/node-1-kubelet.log" | tail -n 1
}
