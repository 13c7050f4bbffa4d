#!/usr/bin/env bash
# What a driver must be allowed, as the table of SECURITY.md says. Sourced by tests/guest/test.

# Whoever calls drivers: nobody special, or a program that takes capabilities away first.
caller=()

# works DRIVER OPTIONS CAPABILITY...: mount, look, mount again, unmount with these alone.
works() {
    local driver=$1 options=$2 answers kept
    shift 2
    kept=$(printf ',+%s' "$@")
    caller=(setpriv --bounding-set "-all${kept%,+}" --inh-caps=-all)
    answers=$(set_up least "$driver" "$options" && set_up least "$driver" "$options" && tear_down least "$driver")
    caller=()
    [[ $answers == "$ok"$'\n'"$ok"$'\n'"$ok" ]] && return
    tear_down least "$driver" >/dev/null
    return 1
}

# least DRIVER OPTIONS: says what is not as SECURITY.md says: its capabilities are enough, and each of them is needed.
least() {
    local needed others one
    read -ra needed < <(sed -n "s/^| \`$1\` | \(.*\) |$/\1/p" SECURITY.md | tr -d '\`,')
    [[ ${#needed[@]} -gt 0 ]] || { echo "SECURITY.md has no row of $1"; return; }
    works "$1" "$2" "${needed[@]}" || echo "${needed[*]}: not enough"
    for one in "${needed[@]}"; do
        mapfile -t others < <(printf '%s\n' "${needed[@]}" | grep -vx "$one")
        ! works "$1" "$2" "${others[@]}" || echo "$one: not needed"
    done
}
