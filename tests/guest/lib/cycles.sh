#!/usr/bin/env bash
# Up and down, again and again: nothing is more than after the first time. Sourced by
# tests/guest/test. 2,000 times, or as often as a file `cycles` in the job says.

# What could become more, one a line, with how many there are.
inventory() {
    printf 'mounts %d\n' "$(wc -l </proc/self/mountinfo)"
    printf 'devices %d\n' \
        "$(for device in block/loop*/loop block/nbd*/pid block/dm-* block/sd* block/rbd* class/iscsi_session/*; do
            compgen -G "/sys/$device"
        done | wc -l)"
    printf 'records %d\n' "$(left_over | wc -l)"
    printf 'keys %d\n' "$(wc -l </proc/keys)"
    # Of all but the kernel and the case itself.
    local own pid group name
    own=$(ps -o pgid= -p "$BASHPID")
    ps --ppid 2 -N -o pid=,pgid=,comm= | while read -r pid group name; do
        [[ $group -ne $own && -e /proc/$pid/exe ]] || continue
        printf 'processes:%s 1\ndescriptors:%s %d\n' "$name" "$name" \
            "$(find "/proc/$pid/fd" -mindepth 1 2>/dev/null | wc -l)"
    done | awk '{sum[$1] += $2} END {for (name in sum) print name, sum[name]}'
}

# more_than FILE: what there is more of than it says.
more_than() {
    inventory | awk 'NR == FNR {before[$1] = $2; next}
        $2 > before[$1] {print $1 ": " $2 ", and " before[$1] + 0 " after the first time"}' "$1" -
}

# endures shared|staged DRIVER OPTIONS: says what is more in the end.
endures() {
    local count answer more='' tries=0
    for ((count = 0; count <= cycles; count++)); do
        answer=$(up "$@")
        [[ $answer == "$ok" ]] || { echo "cycle $count: $answer"; return; }
        answer=$(down "$@")
        [[ $answer == "$ok" ]] || { echo "cycle $count: $answer"; return; }
        [[ $count -gt 0 ]] || { sleep 3; inventory >/tmp/after-first; }
    done
    # Servers take a while to see that nobody is there any more.
    while more=$(more_than /tmp/after-first) && [[ -n $more && $tries -lt 120 ]]; do
        sleep 0.5
        tries=$((tries + 1))
    done
    printf '%s' "$more"
}

# endurance shared|staged DRIVER OPTIONS: one case, and a line for docs/trust.md. Installs the
# driver first.
endurance() {
    local start failures=0 cycles
    install_driver "$2" '{}'
    start=$EPOCHREALTIME
    cycles=$(cat cycles 2>/dev/null || echo 2000)
    LIMIT=$((300 + cycles * 20)) says "guest: cycles: $2" '' endures "$@" || failures=1
    awk -v driver="$2" -v cycles="$cycles" -v failures="$failures" -v from="$start" -v to="$EPOCHREALTIME" 'BEGIN {
        printf "# TRUST endurance %s cycle points=%d tried=%d failures=%d seed=- seconds=%.1f form=soak\n",
            driver, cycles, cycles, failures, to - from }'
}
