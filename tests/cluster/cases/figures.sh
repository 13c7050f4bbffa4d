#!/usr/bin/env bash
# shellcheck disable=SC2016,SC2154 # an inner shell expands, tap.sh sets last
# What a volume costs a node: kubelet's own figures, beside a shell driver that does the same:
# Kubernetes' `dummy`, a tmpfs. Sourced by tests/cluster/chapter. PODS=1000 for docs/figures.md.

namespace figures >/dev/null
rounds=$((${PODS:-40} / 20))

install_both() {
    on node-1 flexvol install tmpfs --plugin-dir "$PLUGINS" &&
        on node-1 mkdir -p "$PLUGINS/k8s~dummy" &&
        on node-1 install -m 755 "$CLUSTER/programs/drivers/dummy" "$PLUGINS/k8s~dummy/.dummy" &&
        on node-1 mv "$PLUGINS/k8s~dummy/.dummy" "$PLUGINS/k8s~dummy/dummy"
}

# batch ROUND: ten pods of each driver, in turn.
batch() {
    local number
    for number in {1..10}; do
        pod "ours-$1-$number" 'flexVolume: {driver: flexvol/tmpfs}'
        pod "dummy-$1-$number" 'flexVolume: {driver: k8s/dummy}'
    done
}

# All of a round is there, then all of it goes.
play_round() {
    apply < <(batch "$1") >/dev/null && runs --all && remove pod --all
}

# seconds OPERATION PLUGIN: how many there were, and what one took on average, as kubelet counts.
seconds() {
    kube get --raw /api/v1/nodes/node-1/proxy/metrics | awk \
        -v operation="operation_name=\"$1\"" -v plugin="volume_plugin=\"$2\"" '
        index($0, "storage_operation_duration_seconds_") == 1 && index($0, operation) && index($0, plugin) &&
            index($0, "status=\"success\"") {
            if ($1 ~ /_sum\{/) sum += $2
            if ($1 ~ /_count\{/) count += $2
        }
        END { printf "%d %.6f\n", count, count ? sum / count : 0 }'
}

# Of its own: pages of the program's file come and go with the page cache.
own_memory() { on node-1 awk '/^RssAnon/ { print $2 }' "/proc/$1/status"; }

# A node that has drivers kept by a deployment.
deploys() {
    on node-1 bash -c '
        setsid flexvol deploy tmpfs --plugin-dir "$0" --state-dir /var/lib/flexvol </dev/null >>"$1" 2>&1 &
        echo $! >/run/deploy.pid' "$PLUGINS" "$CLUSTER/log/deploy.log"
    eventually 10 on node-1 test -e "$PLUGINS/flexvol~tmpfs/tmpfs"
    on node-1 cat /run/deploy.pid
}

says 'figures: two drivers' '*installed*' install_both
says 'figures: a deployment' '[0-9]*' deploys
deployment=$last before=$(own_memory "$last")

start=$EPOCHREALTIME
for round in $(seq "$rounds"); do
    LIMIT=120 says "figures: round $round: 20 pods come and go" '' play_round "$round"
done
awk -v from="$start" -v to="$EPOCHREALTIME" -v pods="$((rounds * 20))" 'BEGIN {
    printf "# FIGURE %d pods with a volume come and go: %.0f in a minute\n", pods, pods * 60 / (to - from) }'

# compared OPERATION: says which of the two is slower, if it is ours.
compared() {
    local ours dummy
    ours=$(seconds "$1" flexvol/tmpfs) dummy=$(seconds "$1" k8s/dummy)
    awk -v ours="$ours" -v dummy="$dummy" -v operation="$1" 'BEGIN {
        split(ours, a, " "); split(dummy, b, " ")
        printf "FIGURE %s: flexvol %.1f ms (%d), dummy %.1f ms (%d)\n", operation, a[2] * 1000, a[1], b[2] * 1000, b[1]
        if (a[1] == 0 || b[1] == 0 || a[2] > b[2] * 1.1) print "ours is slower, or nothing was counted" }'
}
says 'figures: a mount takes kubelet no longer than one of the shell driver' 'FIGURE*dummy*ms \([0-9]*\)' \
    compared volume_mount
echo "# $last"
says 'figures: nor does an unmount' 'FIGURE*dummy*ms \([0-9]*\)' compared volume_unmount
echo "# $last"

# 30 pods with ten volumes each. kubelet mounts those that a container uses.
crowd() {
    local more number
    more=$(for number in {2..10}; do printf ', {name: v%d, mountPath: /v%d}' "$number" "$number"; done)
    for number in {1..30}; do
        pod "crowd-$number" "flexVolume: {driver: flexvol/tmpfs}" | sed "s#mountPath: /v}#&$more#"
        printf '  - {name: v%d, flexVolume: {driver: flexvol/tmpfs}}\n' {2..10}
    done
}
mounted() { on node-1 grep -c 'volumes/flexvol~tmpfs' /proc/self/mountinfo; }

start=$EPOCHREALTIME
says 'figures: 30 pods with ten volumes each are made' '*created*' apply < <(crowd)
LIMIT=120 patience=100 says 'figures: they run' '' runs --all
awk -v from="$start" -v to="$EPOCHREALTIME" \
    'BEGIN { printf "# FIGURE 300 volumes on one node: there after %.1f s\n", to - from }'
says 'figures: 300 volumes are mounted' 300 mounted
says 'figures: status lists them' 300 on node-1 bash -c "flexvol status --json | jq '.volumes | length'"
start=$EPOCHREALTIME
LIMIT=120 patience=100 says 'figures: they go' '' remove pod --all
awk -v from="$start" -v to="$EPOCHREALTIME" \
    'BEGIN { printf "# FIGURE 300 volumes on one node: gone after %.1f s\n", to - from }'

# What a deployment holds on to does not grow with the pods.
grown() {
    local now
    now=$(own_memory "$deployment")
    echo "FIGURE deploy: $before KiB of its own before the first pod, $now KiB after the last"
    [[ $now -le $((before + 256)) ]] || echo "it has grown"
}
says 'figures: a deployment has not grown' 'FIGURE*last' grown
echo "# $last"
says 'figures: the deployment ends' '' on node-1 bash -c 'kill $(</run/deploy.pid)'
says 'figures: drivers go' '*tmpfs removed*' \
    on node-1 bash -c 'rm -r "$0/k8s~dummy" && flexvol uninstall tmpfs --plugin-dir "$0"' "$PLUGINS"
says 'figures: nothing is left' '' clean node-1
