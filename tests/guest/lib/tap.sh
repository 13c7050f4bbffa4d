#!/usr/bin/env bash
# Cases, each a line of TAP and each bounded in time. Sourced by tests/guest/test.

number=0 last=
ok='{"status":"Success"}'
# Where a case's output goes, and how it says that it has ended.
said=$(mktemp) || exit 1
ended=$(mktemp -u) || exit 1
mkfifo "$ended" || exit 1
exec {done}<>"$ended"
# Each case is a process group of its own, so that one that hangs ends with all it started.
set -m

# bounded SECONDS COMMAND...: runs a program or a function for at most so long; its output is in
# $said.
bounded() {
    local limit=$1 of status worker
    shift
    {
        "$@" >"$said" 2>&1 {done}>&-
        echo "$number $?" >&"$done"
    } &
    worker=$!
    disown "$worker"
    while read -rt "$limit" -u "$done" of status; do
        [[ $of -ne $number ]] || return "$status"
    done
    kill -KILL -- "-$worker"
    {
        echo "no end after $limit s"
        [[ ! -e /tmp/answer ]] || { echo "the last of many answers: $(</tmp/answer)" && rm /tmp/answer; }
    } >>"$said"
    return 124
}

# says NAME PATTERN COMMAND...: one case: the output, newlines at its end not counted, is as the
# pattern says, and comes within $LIMIT seconds, times $PACE. A command that is to say nothing must
# succeed, too: of one that fails in silence nothing else would tell. The output stays in $last,
# without NULs. How long it took is told if that is long for this guest, to which each process is
# much: none is started here.
says() {
    local name=$1 expected=$2 start=${EPOCHREALTIME/[.,]/} status=0 verdict=0 parts took
    shift 2
    number=$((number + 1))
    bounded "$((${LIMIT:-60} * ${PACE:-1}))" "$@" || status=$?
    mapfile -d '' parts <"$said"
    printf -v last %s "${parts[@]}"
    while [[ $last == *$'\n' ]]; do last=${last%$'\n'}; done
    # shellcheck disable=SC2053 # a pattern is meant
    if [[ $last == $expected && (-n $expected || $status -eq 0) ]]; then
        echo "ok $number $name"
    else
        verdict=1
        printf 'not ok %d %s\n# wanted: %s\n' "$number" "$name" "$expected"
        printf '# got: %s\n# exit status: %d\n' "${last//$'\n'/$'\n'# got: }" "$status"
    fi
    took=$((${EPOCHREALTIME/[.,]/} - start))
    [[ $took -lt 1500000 ]] || printf '# took %d.%d s\n' $((took / 1000000)) $((took / 100000 % 10))
    return "$verdict"
}

# quietly COMMAND...: says nothing if it succeeds; else what the command said, and that it failed.
quietly() {
    "$@" >/tmp/quietly 2>&1 || {
        cat /tmp/quietly
        echo "failed: $*"
        return 1
    }
}

# finds COMMAND...: what it finds; that there is nothing is no failure.
finds() { "$@" || true; }

# never_said TEXT: the case before did not print this.
never_said() {
    [[ $last != *"$1"* ]] || echo "it says: $last"
}

# chapter NAME: what follows, and when that was.
chapter() {
    echo "# $1, $(cut -d' ' -f1 /proc/uptime) s after the guest's start"
}

# A case that cannot be played yet: skips NAME REASON.
skips() {
    number=$((number + 1))
    echo "ok $number $1 # skip $2"
}
