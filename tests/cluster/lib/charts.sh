#!/usr/bin/env bash
# The chart that `flexvol manifest helm` writes, installed by helm. Sourced by the chapter
# deployment; FLEXVOL_HELM is the program that tests/cluster/helm/program has built.

helm() { enter world "$FLEXVOL_HELM" --namespace charts "$@"; }

# Prints only what is wrong with it.
chart() {
    local said
    rm -rf -- "$CLUSTER/chart"
    said=$(flexvol manifest helm --image tests.flexvol.dev/flexvol:1 --output "$CLUSTER/chart" charted/tmpfs 2>&1) ||
        echo "$said"
    said=$(helm lint --strict "$CLUSTER/chart" 2>&1) || echo "$said"
}

# release COMMAND [OPTION...]: install or upgrade; how the pods of it came.
release() {
    local command=$1 said
    shift
    said=$(helm "$command" drivers "$CLUSTER/chart" "$@" 2>&1) || echo "$said"
    kube --namespace charts rollout status daemonset/drivers --timeout=50s | tail -n 1
}

# charted PROGRAM: on which node the driver is another file, and the policy of each.
charted() {
    for node in node-1 node-2; do
        on "$node" cmp -- "$PLUGINS/charted~tmpfs/tmpfs" "$1"
        on "$node" jq --compact-output .policy "$PLUGINS/charted~tmpfs/.flexvol.json"
    done
}

# mounted_by_chart: what a pod says that its driver serves.
mounted_by_chart() {
    # shellcheck disable=SC2034 # of the pod
    local script='echo data >/v/file && cat /v/file'
    apply >/dev/null < <(pod charted 'flexVolume: {driver: charted/tmpfs, options: {size: 1Mi}}')
    said_by charted
    remove pod charted
}

slip() {
    helm upgrade drivers "$CLUSTER/chart" --set drvers=tmpfs 2>&1 |
        grep -o "additional properties 'drvers' not allowed"
}

# What is left of it, once it is uninstalled.
released() {
    local said
    said=$(helm uninstall drivers --wait --timeout 50s 2>&1) || echo "$said"
    kube --namespace charts get daemonsets,configmaps,serviceaccounts -o name \
        -l app.kubernetes.io/instance=drivers
    kube --namespace charts wait pods -l app.kubernetes.io/instance=drivers --for=delete --timeout=40s >/dev/null
    kube delete namespace charts --wait=false >/dev/null
    for node in node-1 node-2; do
        quietly on "$node" flexvol uninstall charted/tmpfs --plugin-dir "$PLUGINS"
    done
}
