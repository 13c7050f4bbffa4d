#!/usr/bin/env bash
# Whether a secret shows. Sourced by tests/guest/test.

# Whoever looks at processes and their environments all the time: what shows is the kernel's to keep, not luck's.
watch_processes() {
    while sleep 0.02; do cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ; done >/tmp/watched 2>/dev/null &
    watcher=$!
}
unwatch() {
    kill "$watcher"
    wait "$watcher" 2>/dev/null
}

# Everywhere a secret might lie in clear: processes, mounts, logs, records, the kernel's log.
betrayed() {
    dmesg >/tmp/dmesg
    grep -lraF -- "$1" /tmp/watched /tmp/dmesg /proc/mounts /proc/self/mountinfo /run /var/log "$PLUGINS" 2>/dev/null
}
