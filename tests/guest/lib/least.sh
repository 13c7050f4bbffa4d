#!/usr/bin/env bash
# What a driver must be allowed, as the table of SECURITY.md says. Sourced by tests/guest/test.

# Whoever calls drivers: nobody special, or a program that takes capabilities away first.
caller=()

# works shared|staged DRIVER OPTIONS CAPABILITY...: mount, look, mount again, unmount with these
# alone.
works() {
    local how=$1 driver=$2 options=$3 answers kept
    shift 3
    kept=$(printf ',+%s' "$@")
    caller=(setpriv --bounding-set "-all${kept%,+}" --inh-caps=-all)
    answers=$(up "$how" "$driver" "$options" && up "$how" "$driver" "$options" && down "$how" "$driver")
    caller=()
    [[ $answers == "$ok"$'\n'"$ok"$'\n'"$ok" ]] && return
    down "$how" "$driver" >/dev/null
    return 1
}

# least shared|staged DRIVER OPTIONS: says what is not as SECURITY.md says: its capabilities are
# enough, and each of them is needed.
least() {
    local needed others one
    read -ra needed < <(sed -n "s/^| \`$2\` | \(.*\) |$/\1/p" SECURITY.md | tr -d '\`,')
    [[ ${#needed[@]} -gt 0 ]] || { echo "SECURITY.md has no row of $2"; return; }
    works "$@" "${needed[@]}" || echo "${needed[*]}: not enough"
    for one in "${needed[@]}"; do
        mapfile -t others < <(printf '%s\n' "${needed[@]}" | grep -vx "$one")
        ! works "$@" "${others[@]}" || echo "$one: not needed"
    done
}
