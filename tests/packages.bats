#!/usr/bin/env bats
# How tests/packages brings what is missing: on a machine of stand-ins, whose packages are lines of
# a file and whose commands are files beside them. For the qemu-system-x86 that the mirror prefers,
# an installed qemu-utils that is newer has to go; one that fits is there, too.

setup() {
    repository=$(cd -- "$BATS_TEST_DIRNAME/.." && pwd)
    export machine=$BATS_TEST_TMPDIR/machine
    mkdir -p "$machine/bin"
    for program in apt-get apt-cache dpkg-query id; do
        { echo '#!/usr/bin/env bash' && declare -f "stand_in_$program" && echo "stand_in_$program \"\$@\""; } \
            >"$machine/bin/$program"
        chmod +x "$machine/bin/$program"
    done
    : >"$machine/installed"
}

stand_in_id() { echo 0; }

stand_in_dpkg-query() {
    awk '{ print "installed", $2, $3 }' "$machine/installed"
}

stand_in_apt-cache() {
    [[ $1 == show ]] || return 0
    shift 3
    for package; do
        echo "Package: $package"
        [[ $package != qemu-* ]] || echo 'Source: qemu'
    done
}

# install: by the preferences of its options, or else version 8 of all there is.
stand_in_apt-get() {
    echo "$*" >>"$machine/calls"
    [[ $* == *' install '* ]] || return 0
    local version=8 package
    while [[ $1 != -- ]]; do
        [[ $1 != Dir::Etc::Preferences=* ]] || version=$(awk '/^Pin: version / { print $3 }' "${1#*=}")
        shift
    done
    shift
    for package; do
        [[ $package != absent ]] || continue
        if [[ $package == qemu-system-x86 &&
            -n $(awk -v version="$version" '$1 == "qemu-utils" && $3 != version' "$machine/installed") ]]; then
            [[ $(tail -n 1 "$machine/calls") != *--no-remove* || -e $machine/removes ]] ||
                { echo 'E: remove is disabled'; return 100; }
            sed -i '/^qemu-utils /d' "$machine/installed"
            rm -f "$machine/bin/of-qemu-utils"
        fi
        [[ $package != qemu-* ]] || echo "$package qemu $version" >>"$machine/installed"
        printf '#!/bin/sh\n' >"$machine/bin/of-$package"
        chmod +x "$machine/bin/of-$package"
    done
}

# needs ENTRIES: what tests/packages does about them.
needs() {
    # shellcheck disable=SC2016 # expanded by the inner shell
    PATH=$machine/bin:$PATH run bash -c '
        source tests/packages
        scratch=$machine
        # They are this machine'"'"'s.
        forbid_daemons() { :; }
        allow_daemons() { :; }
        PACKAGES[try]=$1
        need try' needs "$1"
}

newer_qemu_utils() {
    stand_in_apt-get -qq install -- qemu-utils
    sed -i 's/ 8$/ 9/' "$machine/installed"
    : >"$machine/calls"
}

@test "nothing is removed for a package, and one that fits is taken" {
    cd "$repository"
    newer_qemu_utils
    needs 'qemu-system-x86:of-qemu-system-x86 qemu-utils:of-qemu-utils other:of-other'
    echo "$output"
    [ "$status" -eq 0 ]
    [ "$(sort "$machine/installed")" = $'qemu-system-x86 qemu 9\nqemu-utils qemu 9' ]
    [ -x "$machine/bin/of-other" ]
}

@test "apt may never remove anything" {
    cd "$repository"
    newer_qemu_utils
    needs 'qemu-system-x86:of-qemu-system-x86 absent:of-absent other/another:of-another'
    grep -q ' install ' "$machine/calls"
    run grep -v -e ' install .*--no-remove' -e ' update$' "$machine/calls"
    [ "$output" = '' ]
}

@test "every command is looked for once more when apt has ended" {
    cd "$repository"
    newer_qemu_utils
    # What apt should not do.
    : >"$machine/removes"
    printf '#!/bin/sh\n' | tee "$machine/bin/dpkg-query" >/dev/null
    needs 'qemu-utils:of-qemu-utils qemu-system-x86:of-qemu-system-x86'
    echo "$output"
    [ "$status" -eq 1 ]
    [[ $output == *'apt-get could not bring of-qemu-utils (of qemu-utils)'* ]]
}

@test "what cannot be had is named, and keeps nothing else away" {
    cd "$repository"
    needs 'absent:of-absent other:of-other'
    [ "$status" -eq 1 ]
    [[ $output == *'apt-get could not bring of-absent (of absent)'* ]]
    [ -x "$machine/bin/of-other" ]
}
