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
# restarts_on PLACE NAME COMMAND...: as runs_on, and once more whenever it ends, as kubelet does it.
restarts_on() {
    # shellcheck disable=SC2016 # there
    runs_on "$1" "$2" bash -c 'trap "kill \$child; wait \$child; exit" TERM
        while :; do "$@" & child=$!; wait "$child"; echo "ended with $?: once more"; sleep 1; done' - "${@:3}"
}
# kills_on PLACE NAME: what restarts_on has started, as by kill -9.
kills_on() {
    # shellcheck disable=SC2016 # there
    on "$1" bash -c 'pgrep --parent "$(<"/run/$1.pid")" flexvold | xargs kill -KILL' - "$2"
}
# words_of PLACE-NAME...: the end of what these have said, as comments.
words_of() {
    local name
    for name in "$@"; do tail -n 25 -- "$CLUSTER/log/$name.log" 2>/dev/null | sed "s/^/# $name: /"; done
}
