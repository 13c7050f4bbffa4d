#!/usr/bin/env bash
# The conformance kit on a driver whose server is the guest's. Sourced by tests/guest/test.

# What is played of every driver. A file `check` in the job names more, in a line; all of them take
# minutes for each driver.
CHECKED=(mount::two_pods unmount::works)
CHECKED_SECONDS=180
[[ ! -e check ]] || { read -ra CHECKED <check; CHECKED_SECONDS=6000; }
# Of a driver with a server.
SERVED=(--network host -t mount::backend_down)
# What the kit says goes past the case's own output. LVM complains of every descriptor that it does
# not know.
exec {shown}>&1
export LVM_SUPPRESS_FD_WARNINGS=1

# small_pv DRIVER OPTIONS: the file of a PV that is smaller than what its server has for it: that
# grows before its PV does.
small_pv() {
    cat >"/tmp/$1.yaml" <<YAML
apiVersion: v1
kind: PersistentVolume
metadata: {name: pv-$1}
spec:
  capacity: {storage: 16Mi}
  accessModes: [ReadWriteOnce]
  flexVolume:
    driver: example/$1
    options: {$2}
YAML
    echo "/tmp/$1.yaml"
}

# check DRIVER WORD...: says of each case that does not hold why.
check() {
    local driver=$1 case chosen=()
    shift
    for case in "${CHECKED[@]}"; do chosen+=(-t "$case"); done
    modprobe overlay
    # A guest whose processors are shared takes its time for a mkfs.
    ./flexvol check --format tap --output /tmp/checked --seed 1 --repeat 1 --jobs 1 --timeout 90 "${chosen[@]}" "$@" \
        "$PLUGINS/$vendor~$driver" 2>&1 | sed -u 's/^/#   /' >&"$shown"
    awk '
        /^not ok/ { bad = 1 }
        /^(ok|1\.\.)/ { bad = 0 }
        bad { print }
        /^ok .*# SKIP/ { next }
        /^ok / { held++ }
        END { if (held < 2) print "only " held + 0 " cases hold" }' /tmp/checked
}

# both_hold DRIVER WORD...: one case of the guest each for a driver that does not attach, and for
# one that does.
both_hold() {
    local attach
    for attach in false true; do
        attaches "$1" "$attach"
        as=", attach $attach" holds "$@"
    done
}

# holds DRIVER WORD...: one case of the guest, and how many of the kit it was.
holds() {
    local start=$EPOCHREALTIME
    LIMIT=$CHECKED_SECONDS says "guest: flexvol check: $1${as:-}" '' check "$@"
    awk -v driver="$1${as:-}" -v from="$start" -v to="$EPOCHREALTIME" '
        /^ok .*# SKIP/ { skipped++; next }
        /^ok / { held++ }
        /^not ok / { failed++ }
        END {
            printf "# flexvol check: %s: %d hold, %d do not, %d do not concern it, %.0f s\n",
                driver, held, failed, skipped, to - from
        }' /tmp/checked
}
