#!/usr/bin/env bash
# How tests/run counts what a step has printed, and plays what failed once more. Sourced by it.
# shellcheck disable=SC2154 # set by tests/run

# second_chance STEP KIND: plays what failed once more, alone, and counts it as passed if nothing
# fails then. Beside a step that still runs it waits for its end.
second_chance() {
    local name=$1 red=$logs/$1.red log=$logs/$1.again.log budget other lines
    [[ $2 != one ]] || return 1
    [[ $2 == cargo ]] || sed -n 's/^not ok [0-9]* //p' "$logs/$name.log" >"$red"
    [[ -f $red ]] || return 1
    lines=$(wc -l <"$red")
    # A step that was killed, or has a skip that nobody expected, has more failures than names.
    [[ $status -lt 124 && $lines -gt 0 && $lines -le $SECOND_CHANCES && $lines -eq ${count[1]} ]] || return 1
    for other in "${!running[@]}"; do tail --pid="${running[$other]}" -f /dev/null; done
    read -r _ _ budget _ < <(row "$name")
    cp -- "$red" "$scratch/again"
    mkdir -p -- "$scratch/$name"
    TMPDIR=$scratch/$name bounded $((4 * budget * FLEXVOL_SLOWDOWN)) "$log" \
        "tests/steps/$name" again "$scratch/again" || return 1
    ! grep -q '^not ok ' "$log" || return 1
    mapfile -t -O "${#unstable[@]}" unstable < <(sed "s|^[^ ]*/||; s|^|$name: |" "$scratch/again")
    count[0]=$((count[0] + count[1])) count[1]=0
}

# show_failures STEP LOG: what failed first, wherever in the log it stands, then how the log ends.
show_failures() {
    echo "--- $1: what failed, of $2"
    grep -E -A 3 '^test .* FAILED$|panicked at |^not ok |^error' "$2" | head -n 100 || true
    echo "--- $1: its end"
    tail -n 50 "$2"
    echo "---"
}

# The three below set count=(passed failed skipped) of the caller.

count_one() {
    local skips
    skips=$(grep -c '^SKIP ' "$1" || true)
    if [[ $2 -ne 0 ]]; then count=(0 1 "$skips"); elif [[ $skips -gt 0 ]]; then count=(0 0 "$skips"); \
        else count=(1 0 0); fi
}

# A test that says SKIP counts as skipped only, once for each thing it skipped.
count_cargo() {
    # `test x ... ignored, reason` becomes a SKIP line like those the tests print themselves.
    sed -i -E 's/^test (.*) \.\.\. ignored(, (.*))?$/SKIP \1: ignored \3/' "$1"
    read -ra count < <(awk '
        /^test result: / { passed += $4; failed += $6 }
        /^---- .* stdout ----$/ { block = $0 }
        /^SKIP / { skips++; if (block != "" && !seen[block]++) partly++ }
        /^test result: / { block = ""; delete seen }
        END { print passed - partly, failed + 0, skips + 0 }' "$1")
    # A test that plays itself in a namespace of its own has two results.
    [[ ! -s ${1%.log}.red ]] || count[1]=$(wc -l <"${1%.log}.red")
    at_least_one "$2"
}

count_bats() {
    # TAP: `ok 3 name # skip reason` becomes a SKIP line.
    sed -i -E 's/^ok [0-9]+ (.*) # skip ?(.*)$/SKIP \1: \2/' "$1"
    read -ra count < <(awk '/^ok /{p++} /^not ok /{f++} /^SKIP /{s++} END {print p+0, f+0, s+0}' "$1")
    at_least_one "$2"
}

# at_least_one STATUS: a step that failed, or has played nothing, has at least one failure.
at_least_one() {
    [[ $1 -eq 0 || ${count[1]} -gt 0 ]] || count[1]=1
    [[ $((count[0] + count[1] + count[2])) -gt 0 ]] || count[1]=1
}

# note_skips LOG: prints the skips of a step; in CI one that nobody expected is a failure.
note_skips() {
    local line name
    while IFS= read -r line; do
        echo "$line"
        name=${line#SKIP } name=${name%%: *}
        if [[ ${CI:-} == true && $'\n'$(<"$EXPECTED_SKIPS") != *$'\n'"$name: "* ]]; then
            echo "not in $EXPECTED_SKIPS: $name"
            count[1]=$((count[1] + 1))
        fi
    done < <(grep '^SKIP ' "$1" || true)
}
