#!/usr/bin/env bash
# Kubernetes' own e2e suite "External Storage", against drivers that flexvold serves, attaches,
# provisions and grows, and against csi-driver-host-path where $FLEXVOL_PEER is a directory with
# hostpathplugin and csi-node-driver-registrar: by its sidecars, or by flexvold if
# FLEXVOL_PEER_BY=flexvold. A spec that runs is a case, and the report is $FLEXVOL_E2E_REPORT.
# $FLEXVOL_E2E is what tests/cluster/e2e/programs has printed. Sourced by tests/cluster/chapter, and
# no part of tests/cluster/play as a whole: `tests/run e2e`.
# shellcheck source=tests/cluster/lib/node.sh
. "${here:?}/lib/node.sh"
# shellcheck source=tests/cluster/lib/images.sh
. "$here/lib/images.sh"
# shellcheck source=tests/cluster/lib/scripted.sh
. "$here/lib/scripted.sh"
# shellcheck source=tests/cluster/lib/storage.sh
. "$here/lib/storage.sh"
# shellcheck source=tests/cluster/lib/processes.sh
. "$here/lib/processes.sh"
readonly SUITE=$here/e2e REPORT=${FLEXVOL_E2E_REPORT:-$CLUSTER/e2e.json}
readonly OURS=(flexvol/tmpfs ramax.com/local-storage example.com/disk) HOSTPATH=hostpath.csi.k8s.io
readonly DISK=disk.example.com.flex.flexvol.dev SHARE=local-storage.ramax.com.flex.flexvol.dev
readonly NAMES="$DISK $SHARE tmpfs.flexvol.flex.flexvol.dev" PEER=${FLEXVOL_PEER:+$(realpath -- "$FLEXVOL_PEER")}
readonly PEER_BY=${FLEXVOL_PEER_BY:-sidecars} SIDECARS=(csi-resizer csi-provisioner csi-attacher)
# Specs of features that are no part of every cluster, those that end kubelet by ssh, and one that
# wants images of two programs more.
left_out='\[Feature:|\[Disruptive\]|any volume data source'
# Which ours refuses.
[[ $PEER_BY != flexvold ]] || left_out+='|pvc data source'
readonly LEFT_OUT=$left_out SIDE_BY_SIDE=${FLEXVOL_E2E_PROCS:-4}

# --- what the pods of the suite run

suite() { on world "${FLEXVOL_E2E:?}/e2e.test" -kube-test-repo-list "$CLUSTER/e2e-registries" "$@"; }
registries() { printf '%s: tests.flexvol.dev\n' promoterE2eRegistry gcRegistry >"$CLUSTER/e2e-registries"; }
# Of agnhost there is the program, glibc-dns-testing is for its dd, and the others are asked for
# nothing that busybox has not.
images() {
    local image node
    for image in $(suite -list-images | grep -E '^tests.flexvol.dev/(agnhost|busybox|nginx|glibc-dns-testing):'); do
        case $image in
        */agnhost:*) import agnhost "$FLEXVOL_E2E/agnhost" "${image##*:}" node-1 node-2 ;;
        */glibc-dns-testing:*) import glibc-dns-testing '' "${image##*:}" node-1 node-2 ;;
        *) for node in node-1 node-2; do
            on "$node" ctr --namespace k8s.io images tag tests.flexvol.dev/busybox:1 "$image" >/dev/null
        done ;;
        esac
    done
}

# --- drivers of ours, as processes

# Both nodes see one directory for volumes.
shared_directory() {
    mkdir -p -- "$SHARED"
    # shellcheck disable=SC2016 # on the node
    on "$1" bash -c 'mount -t tmpfs srv /srv && mkdir /srv/local && mount --bind "$0" /srv/local' "$SHARED"
}
install_ours() {
    local place plugins
    for place in node-1 node-2 world; do
        plugins=$PLUGINS
        [[ $place != world ]] || plugins=$CONTROLLERS
        on "$place" flexvol install tmpfs --plugin-dir "$plugins"
        on "$place" flexvol install ramax.com/local-storage --set policy.bindRoots=/srv/local --set fsGroup=true \
            --plugin-dir "$plugins"
        scripted "$place" example.com/disk < <(storage_driver)
    done >/dev/null
}
serves() {
    local place=$1
    shift
    runs_on "$place" csi flexvold csi "${OURS[@]/#/--driver=}" --node-id "$place" "$@"
}
# Whoever may do everything: what each right is for, other chapters ask.
account() {
    kube --namespace kube-system create serviceaccount e2e
    kube create clusterrolebinding e2e --clusterrole=cluster-admin --serviceaccount=kube-system:e2e
    mkdir -p -- "$CLUSTER/account"
    (umask 077 && kube --namespace kube-system create token e2e --duration=24h >"$CLUSTER/account/token")
    cp -- "$CLUSTER/pki/ca.crt" "$CLUSTER/account/"
    echo kube-system >"$CLUSTER/account/namespace"
}
# controls PLACE NAME ENDPOINT...: without a sidecar, and once more if it has lost its lease.
controls() {
    restarts_on "$1" "$2" flexvold csi-controller "${@:3}" --work attach,provision,resize --server "https://$WORLD" \
        --account "$CLUSTER/account"
}
ours_begin() {
    local node names
    for node in node-1 node-2; do serves "$node" --plugin-dir "$PLUGINS" --register; done
    serves world --plugin-dir "$CONTROLLERS" --role controller
    on node-1 flexvold manifest csi --image tests.flexvol.dev/unused --plugin-dir "$PLUGINS" "${OURS[@]}" |
        awk 'BEGIN { RS = "---\n" } /kind: "?CSIDriver/ { print "---"; print }' | kube apply --filename - >/dev/null
    read -ra names <<<"$NAMES"
    names=("${names[@]/#/--endpoint=unix:\/\/\/var\/lib\/kubelet\/plugins\/}")
    controls world ours "${names[@]/%/\/csi.sock}"
    eventually 30 are_registered node-1 "$NAMES" && eventually 30 are_registered node-2 "$NAMES"
}
registered() { kube get csinode "$1" -o json | jq -r '[.spec.drivers[]?.name] | sort | join(" ")'; }
are_registered() { [[ $(registered "$1") == "$2" ]]; }
ours_end() {
    local place
    ends_on world ours
    for place in world node-1 node-2; do ends_on "$place" csi; done
}

# class NAME PROVISIONER [MORE]: prints a StorageClass.
class() {
    cat <<YAML
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: $1, labels: {chapter: e2e}}
provisioner: $2
${3:-}
YAML
}
classes() {
    class shared "$SHARE"
    class disk "$DISK" 'allowVolumeExpansion: true
parameters: {csi.storage.k8s.io/fstype: xfs, size: 1G}'
    class hostpath "$HOSTPATH" 'allowVolumeExpansion: true'
}

# --- csi-driver-host-path

hostpath_begins() {
    local directory=/var/lib/kubelet/plugins/csi-hostpath socket sidecar
    socket=$directory/csi.sock
    on node-1 mkdir -p "$directory" /var/lib/csi-hostpath
    runs_on node-1 hostpath "$PEER/hostpathplugin" --drivername="$HOSTPATH" --endpoint="unix://$socket" \
        --nodeid=node-1 --statedir=/var/lib/csi-hostpath
    runs_on node-1 registrar "$PEER/csi-node-driver-registrar" --csi-address="$socket" \
        --kubelet-registration-path="$socket" --plugin-registration-path=/var/lib/kubelet/plugins_registry
    if [[ $PEER_BY == flexvold ]]; then
        controls node-1 peers --endpoint "unix://$socket"
    else
        for sidecar in "${SIDECARS[@]}"; do
            runs_on node-1 "$sidecar" "$sidecar" --csi-address="$socket" --kubeconfig="$KUBECONFIG"
        done
    fi
    kube apply --filename - <<YAML >/dev/null
apiVersion: storage.k8s.io/v1
kind: CSIDriver
metadata: {name: $HOSTPATH}
spec: {volumeLifecycleModes: [Persistent, Ephemeral], podInfoOnMount: true, fsGroupPolicy: File}
YAML
    eventually 30 are_registered node-1 "$(tr ' ' '\n' <<<"$HOSTPATH $NAMES" | sort | paste -sd' ')"
}
hostpath_ends() {
    local name sidecars=("${SIDECARS[@]}")
    [[ $PEER_BY != flexvold ]] || sidecars=(peers)
    for name in "${sidecars[@]}" registrar hostpath; do ends_on node-1 "$name"; done
}

# --- the suite

# plays DEFINITION...: its specs for these drivers. That some fail is told case by case.
plays() {
    rm -f -- "$REPORT"
    on world "$FLEXVOL_E2E/ginkgo" --procs="$SIDE_BY_SIDE" --no-color --timeout=3h \
        --focus="External.Storage.*(${FLEXVOL_E2E_FOCUS:-})" --skip="$LEFT_OUT" \
        --output-dir="$(dirname -- "$REPORT")" --json-report="$(basename -- "$REPORT")" "$FLEXVOL_E2E/e2e.test" -- \
        -kubeconfig "$KUBECONFIG" -kube-test-repo-list "$CLUSTER/e2e-registries" -provider skeleton \
        "${@/#/-storage.testdriver=}" >"$CLUSTER/log/e2e.log" 2>&1 || true
    [[ $("$SUITE/specs" "$REPORT" | wc -l) -gt 0 ]] || { tail -n 20 -- "$CLUSTER/log/e2e.log" && return 1; }
}
# specs: each that ran is a case.
specs() {
    local state name why
    while IFS=$'\t' read -r state name why; do
        number=$((number + 1))
        case $state in
        passed) echo "ok $number e2e: $name" ;;
        *) printf 'not ok %d e2e: %s\n# %s: %s\n' "$number" "$name" "$state" "$why" ;;
        esac
    done < <("$SUITE/specs" "$REPORT")
}

definitions=("$SUITE"/drivers/{tmpfs,shared,disk}.yaml)
LIMIT=120 says 'e2e: registries of the suite' '' registries
LIMIT=120 says 'e2e: images of the suite' '' images
says 'e2e: a storage serves disks' '' storage_begins
for each in node-1 node-2; do says "e2e: $each sees a shared directory" '' shared_directory "$each"; done
says 'e2e: drivers are installed' '' install_ours
says 'e2e: an account' '*created*' account
says 'e2e: classes' '*created*' kube apply --filename - < <(classes)
says 'e2e: drivers are served and registered' '' ours_begin
if [[ -n $PEER ]]; then
    definitions+=("$SUITE/drivers/hostpath.yaml")
    says 'e2e: host-path is served and registered' '' hostpath_begins
else
    skips 'e2e: host-path' 'FLEXVOL_PEER names no directory with hostpathplugin and csi-node-driver-registrar'
fi
LIMIT=10800 says 'e2e: the suite is played' '' plays "${definitions[@]}"
specs
nothing() { [[ -z $(volumes_left) ]]; }
volumes_left() {
    kube get pv,volumeattachments -o name
    storage_attached
}
says 'e2e: no volume is left' '' eval 'eventually 60 nothing; volumes_left'
[[ -z $PEER ]] || says 'e2e: host-path ends' '' hostpath_ends
says 'e2e: ours end' '' ours_end
for each in node-1 node-2; do says "e2e: nothing is left on $each" '' clean "$each"; done
says 'e2e: the storage ends' '' storage_ends
