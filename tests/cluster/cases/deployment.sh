#!/usr/bin/env bash
# Our image as a cluster runs it: what `flexvol manifest` prints is applied, rolled out twice and
# removed, while pods use its drivers. Sourced by tests/cluster/chapter.

# shellcheck source=tests/cluster/lib/manifests.sh disable=SC2154 # set by lib/cluster.sh
. "$here/lib/manifests.sh"
# shellcheck source=tests/cluster/lib/images.sh
. "$here/lib/images.sh"
# shellcheck source=tests/cluster/lib/charts.sh
. "$here/lib/charts.sh"

namespace deployment >/dev/null

# The binary of the second tag is another file by comparison: bytes after the end of the
# program are never read.
cp -- "$CLUSTER/bin/flexvol" "$CLUSTER/bin/flexvol-2"
echo 'a later build' >>"$CLUSTER/bin/flexvol-2"

# deployed TAG: the manifest as an admin prints it, and a second deployment of other drivers, which
# go with it.
deployed() {
    flexvol manifest daemonset --image "tests.flexvol.dev/flexvol:$1" deployed/tmpfs deployed/image
    echo ---
    flexvol manifest daemonset --image tests.flexvol.dev/flexvol:1 --name leaver --uninstall-on-exit leaving/tmpfs
}
rolled_out() { kube --namespace flexvol rollout status daemonset/flexvol --timeout=50s | tail -n 1; }

# deploy TAG: applied, and ready on every node.
deploy() {
    deployed "$1" | kube apply --filename - >/dev/null
    rolled_out
}

# served NAME: the drivers serve a new pod on each node; a driver of each kind.
served() {
    # shellcheck disable=SC2034 # of the pods
    local script='echo data >/v/file && cat /v/file'
    apply >/dev/null < <(
        node=node-1 pod "$1-1" 'flexVolume: {driver: deployed/tmpfs, options: {size: 1Mi}}'
        node=node-2 pod "$1-2" "flexVolume: {driver: deployed/image, options: {file: $1.img, size: 16Mi}}"
    )
    said_by "$1-1"
    said_by "$1-2"
    remove pod "$1-1" "$1-2"
    on node-2 rm -- "/var/lib/flexvol/images/$1.img"
}

# serves_during COMMAND...: pods come and go until it ends. Says how many were not served.
serves_during() {
    local work turn=0
    "$@" >/dev/null &
    work=$!
    while kill -0 "$work" 2>/dev/null || [[ $turn -lt 3 ]]; do
        turn=$((turn + 1))
        [[ $(served "during-$turn") == $'data\ndata' ]] || echo "the pods of turn $turn were not served"
    done
    wait "$work" || echo "$* fails"
}

# same_as PROGRAM: which installed driver is another file.
same_as() {
    for driver in deployed~tmpfs/tmpfs deployed~image/image; do
        for node in node-1 node-2; do
            on "$node" cmp -- "$PLUGINS/$driver" "$1"
        done
    done
}
# kept: what the pods that stay all the while have written.
kept() {
    for node in node-1 node-2; do on "$node" bash -c 'cat /var/lib/kubelet/pods/*/volumes/deployed~tmpfs/v/kept'; done
}
not_pullable() {
    local reasons='{.items[*].status.containerStatuses[*].state.waiting.reason}'
    [[ $(kube --namespace flexvol get pods -o jsonpath="$reasons") == *Image* ]]
}
# stuck: a version whose image cannot be had. Which of the version before stay.
stuck() {
    deployed 3 | kube apply --filename - >/dev/null
    eventually 30 not_pullable || echo 'its image was had'
    kube --namespace flexvol get pods -l app.kubernetes.io/instance=flexvol -o json |
        jq -r '[.items[].status.containerStatuses[0] | select(.ready).image] | join(" ")'
}
undone() {
    kube --namespace flexvol rollout undo daemonset/flexvol >/dev/null
    rolled_out
}
undeploy() { deployed 2 | kube delete --timeout=40s --filename - >/dev/null; }
drivers() {
    for node in node-1 node-2; do on "$node" find "$PLUGINS" -name 'deployed~*' -o -name 'leaving~*'; done |
        sed 's|.*/||' | sort --unique
}
uninstalled() {
    for node in node-1 node-2; do
        quietly on "$node" flexvol uninstall deployed/tmpfs deployed/image --plugin-dir "$PLUGINS"
    done
    drivers
}
failed_mounts() { k get events --field-selector reason=FailedMount \
    -o 'jsonpath={range .items[*]}{.message}{"\n"}{end}'; }

says 'deployment: the image is what Dockerfile builds' '' import flexvol "$CLUSTER/bin/flexvol" 1 node-1 node-2
says 'deployment: the image of a later build' '' import flexvol "$CLUSTER/bin/flexvol-2" 2 node-1 node-2

says 'deployment: applied, its pods become ready' '*successfully rolled out' deploy 1
says 'deployment: each node has the drivers of the image' '' same_as "$CLUSTER/bin/flexvol"
driver=deployed
says 'deployment: pods that stay' '' quietly apply < <(
    for node in node-1 node-2; do
        script='echo kept >/v/kept; while :; do sleep 1; done' pod "stays-$node" 'flexVolume: {driver: deployed/tmpfs}'
    done
)
says 'deployment: pods that stay run' '' runs stays-node-1 stays-node-2
says 'deployment: drivers serve pods' $'data\ndata' served before
says 'deployment: drivers that are to go with their pods are there' '*leaving~tmpfs' drivers

says 'deployment: upgraded while pods come and go' '' serves_during deploy 2
says 'deployment: each node has the drivers of the later image' '' same_as "$CLUSTER/bin/flexvol-2"
says 'deployment: a version without an image stops at the first node' tests.flexvol.dev/flexvol:2 stuck
says 'deployment: drivers serve pods beside it' $'data\ndata' served beside
says 'deployment: undone' '*successfully rolled out' undone
says 'deployment: what pods had is there' $'kept\nkept' kept

says 'deployment: removed while pods come and go' '' serves_during undeploy
says 'deployment: drivers serve pods after it' $'data\ndata' served after
says 'deployment: pods that stayed end' '' remove pod stays-node-1 stays-node-2
says 'deployment: no mount failed' '' failed_mounts
says 'deployment: nothing is left' '' clean node-1
says 'deployment: nothing is left on node-2' '' clean node-2
says 'deployment: drivers stay unless --uninstall-on-exit' $'deployed~image\ndeployed~tmpfs' drivers
says 'deployment: drivers are uninstalled' '' uninstalled

# --- by helm
if [[ -x ${FLEXVOL_HELM:-} ]]; then
    says 'deployment: helm finds nothing in the chart' '' chart
    says 'deployment: helm installs it' '*successfully rolled out' release install --create-namespace
    says 'deployment: its drivers are those of the image' $'null\nnull' charted "$CLUSTER/bin/flexvol"
    says 'deployment: a pod mounts by it' data mounted_by_chart
    says 'deployment: helm upgrades it, and its policy' '*successfully rolled out' release upgrade \
        --set image=tests.flexvol.dev/flexvol:2 --set policy.maxSize=1Gi
    says 'deployment: its drivers are those of the later image' $'{"maxSize":"1Gi"}\n{"maxSize":"1Gi"}' \
        charted "$CLUSTER/bin/flexvol-2"
    says 'deployment: a slip in a value is refused' '*drvers*' slip
    says 'deployment: helm uninstalls it' '' released
else
    skips helm 'helm is not built: tests/cluster/helm/program'
fi

# --- what a cluster has, by the plugin of kubectl
plugin() { ln -sf flexvol "$CLUSTER/bin/kubectl-flexvol"; }
# A slip in an option, and a Secret that kubelet would not hand out.
slips() {
    k create secret generic login --from-literal=password=hunter2
    local secret="secretRef: {name: login, namespace: $namespace}"
    claim slip "{driver: fstab/cifs, options: {networkPaht: //nas/web}, $secret}" | apply
}
# validated [OPTION...]: what of ours it finds, and the last line.
validated() {
    kube flexvol validate "$@" 2>&1 | tee "$CLUSTER/validated" | grep -o "$namespace.*: error: .*\[[a-z-]*\]" |
        sed 's/: error: .*\[/ [/'
    tail -n 1 -- "$CLUSTER/validated"
    ! grep hunter2 "$CLUSTER/validated"
}
# Whoever may read volumes, and no Secret.
reader() {
    kube create clusterrole volume-reader --verb=get,list \
        --resource=pods,persistentvolumes,persistentvolumeclaims,storageclasses.storage.k8s.io
    kube create clusterrolebinding volume-reader --clusterrole=volume-reader --serviceaccount="$namespace:default"
    kubeconfig "$CLUSTER/reader.kubeconfig" "$(k create token default)"
}
unreadable() {
    kube delete clusterrole,clusterrolebinding volume-reader
    k delete pvc,secret slip login --ignore-not-found
    kube delete pv "$namespace-slip"
}

says 'deployment: flexvol is a plugin of kubectl' '' plugin
says 'deployment: volumes with slips' '' quietly slips
says 'deployment: kubectl flexvol validate names them' \
    $'deployment-slip \\[unknown-option\\]\ndeployment/login \\[secret-type\\]\n* errors*' validated
says 'deployment: a user who may not read Secrets' '' quietly reader
says 'deployment: no Secret is called missing to that user' $'deployment-slip \\[unknown-option\\]\n*Secret*' \
    validated --kubeconfig "$CLUSTER/reader.kubeconfig"
says 'deployment: the slips are gone' '' quietly unreadable

# --- every manifest and example, before the real API server
kube create namespace flexvol --save-config >/dev/null
says 'deployment: examples are strictly valid' '' strictly_valid "$here/../../examples"
says 'deployment: examples of profiles are strictly valid' '' strictly_valid "$here/../../examples/profiles"
says 'deployment: manifests of every platform are strictly valid' '' platforms_valid
says 'deployment: kustomize is strictly valid' '' kustomize_valid
says 'deployment: init-container patches a DaemonSet' '/flexvol deploy --once c' init_container_valid
says 'deployment: what explain prints is strictly valid' '' explained_valid
says 'deployment: YAML of the documents is strictly valid' '' documents_valid
says 'deployment: an unknown field is found' '*unknown field "spec.flexVolumes"*' misspelt
kube delete namespace flexvol --wait=false >/dev/null
