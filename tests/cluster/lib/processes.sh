#!/usr/bin/env bash
# Processes of a chapter's own, on nodes and beside the API server. Sourced by chapters.

# runs_on PLACE NAME COMMAND...: a process there, its pid in /run/NAME.pid, its words in the log.
runs_on() {
    local place=$1 name=$2
    shift 2
    # shellcheck disable=SC2016 # there
    on "$place" bash -c 'setsid -- "${@:3}" </dev/null >>"$1" 2>&1 & echo $! >"/run/$2.pid"' - \
        "$CLUSTER/log/$place-$name.log" "$name" "$@"
}
# ends_on PLACE NAME [SIGNAL]: and says nothing when it has.
ends_on() {
    # shellcheck disable=SC2016 # there
    on "$1" bash -c 'kill "-$2" "$(<"/run/$1.pid")"; while [[ -d /proc/$(<"/run/$1.pid") ]]; do sleep 0.05; done' - \
        "$2" "${3:-TERM}"
}
