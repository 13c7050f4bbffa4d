#!/usr/bin/env bash
# Whether a secret shows, in full or a part of it, in any spelling. Sourced by tests/guest/test.

# spellings SECRET: as it is, in base64 wherever that begins in it, and as a part of an address.
spellings() {
    local skip
    printf '%s\n' "$1"
    for skip in 0 1 2; do printf %s "$1" | tail -c +$((skip + 1)) | base64 -w0 && echo; done
    printf %s "$1" | perl -pe 's/([^\w.~-])/sprintf "%%%02X", ord $1/ge' && echo
}

# watch_processes SECRET: looks at the processes and their environments all the time, until unwatch;
# what shows is the kernel's to keep, not luck's.
watch_processes() {
    spellings "$1" >/tmp/watching
    ./watch /tmp/watching >/tmp/parts
    ./watch /tmp/watching "$PLUGINS" >/tmp/watched 2>&1 &
    watcher=$!
}
unwatch() {
    rm /tmp/watching
    wait "$watcher"
}

# looks: how often the last watch looked.
looks() {
    sed -n 's/^looks //p' /tmp/watched
}

# left_in_files: the logs, records, mounts and side files that have a part of it, and the kernel's
# log.
left_in_files() {
    dmesg >/tmp/dmesg
    finds grep -lraF --devices=skip -f /tmp/parts -- /tmp/dmesg /proc/mounts /proc/self/mountinfo /run /var/log \
        /etc/iscsi /var/lib/iscsi "$PLUGINS" 2>/dev/null
}

# betrayed: who had a part of it while watch_processes looked, and where it is now.
betrayed() {
    grep -v '^looks' /tmp/watched
    left_in_files
}

# keeps OUTCOME CALL...: does what kubelet does, and says where a part of the secret is after it;
# /tmp/calls grows.
keeps() {
    local outcome=$1 answer
    shift
    answer=$("$@" 2>&1)
    echo "$1" >>/tmp/calls
    [[ $answer == *"\"status\":\"$outcome\""* ]] || echo "$1 is no $outcome: $answer"
    if grep -qaF -f /tmp/parts <<<"$answer"; then echo "$1: the answer has a part of it"; fi
    left_in_files
}

# canary NAME DRIVER OPTIONS NOWHERE KEY SECRET: mount and unmount with that secret, those that
# fail, too; OPTIONS are without it, and NOWHERE is a volume that the server does not have.
canary() {
    local name=$1 driver=$2 key=$5 hidden=$6 given failures=0
    given=$(secret "$key" "$hidden")
    : >/tmp/calls
    watch_processes "$hidden"
    LIMIT=200 says "$name: no call leaves a secret" '' \
        every_call "$driver" "$3,$given" "$4,$given" "$3,${given%\"}!\"" || failures=1
    unwatch
    says "$name: nobody has seen it" '' finds sh -c 'grep -v ^looks /tmp/watched' || failures=1
    says "$name: who looks was there" '' sh -c "[ $(looks) -gt 20 ] || echo only $(looks) times" || failures=1
    echo "# TRUST secrets ${name#guest: } call points=$(looks) tried=$(wc -l </tmp/calls)" \
        "failures=$failures seed=- form=soak"
}
every_call() {
    local driver=$1 options=$2 nowhere=$3 broken=$4
    keeps Success set_up one "$driver" "$options"
    keeps Success set_up one "$driver" "$options"
    keeps Failure set_up one "$driver" "$options,\"noSuchOption\":\"x\""
    keeps Success tear_down one "$driver"
    keeps Failure set_up one "$driver" "$options,\"noSuchOption\":\"x\""
    keeps Failure set_up one "$driver" "$nowhere"
    keeps Failure set_up one "$driver" "$broken"
    keeps Success tear_down one "$driver"
}
