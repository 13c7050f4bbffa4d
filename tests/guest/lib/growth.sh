#!/usr/bin/env bash
# Devices that grow, and what is left of them. Sourced by tests/guest/test.

# grow DRIVER OPTIONS FROM TO: kubelet's expandfs.
grow() {
    "$PLUGINS/$vendor~$1/$1" expandfs "{$2}" '' "$(staged "$1")" "$4" "$3"
}

# mebibytes DIRECTORY: roughly how many its file system has.
mebibytes() {
    stat -f -c '%b %S' "$1" | awk '{print int($1 * $2 / 16777216) * 16}'
}

# no_trace PATTERN: nothing of a device is left: no such process, nothing remembered, nothing
# mounted.
no_trace() {
    pgrep -a "$1"
    find /run/flexvol/stores /run/flexvol/images -mindepth 1 2>/dev/null
    mounted_types
}
