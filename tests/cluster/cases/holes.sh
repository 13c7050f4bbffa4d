#!/usr/bin/env bash
# What a review found before, as a live kubelet plays it. Sourced by tests/cluster/chapter.
# shellcheck source=tests/cluster/lib/node.sh
. "${here:?}/lib/node.sh"

# named VOLUME: the pod on standard input, with that name for its volume.
named() { sed "s/{name: v,/{name: $1,/"; }
# image NAME: the volume of a pod or of a claim, of the driver $by.
image() { echo "{driver: ${by:-flexvol/qcow2}, fsType: ext4, options: {file: $1.${suffix:-qcow2}, size: 32Mi}}"; }
# leaves POD TEXT: it is on the pod's volume.
leaves() { k exec "$1" -- sh -c "echo '$2' >/v/file && sync && cat /v/file"; }
finds='cat /v/file 2>/dev/null || echo nothing'
# beside COMMAND...: in the namespace of the other tenant.
beside() { namespace=holes-b "$@"; }

# panicked VOLUME: what kubelet has said of it, at last.
panics() { grep -F "volumeName:$1 " "$CLUSTER/log/node-1-kubelet.log" | grep -F 'recovered from panic'; }
panicked() {
    eventually 20 panics "$1"
    panics "$1" | tail -n 1
}

namespace holes-b >/dev/null
namespace holes >/dev/null
mkdir -p "$SHARED"
on node-1 flexvol install qcow2 --plugin-dir "$PLUGINS" >/dev/null
everywhere disks/qcow2=qcow2 --set attach=true >/dev/null
everywhere kvaps/loop --set 'policy.imageRoots=["/var/lib/flexvol/images"]' >/dev/null
says 'holes: claims are made' '*created*' apply < <(
    claim mounted "$(image mounted)"
    by=disks/qcow2
    claim victim "$(image victim)"
    claim attached "$(image attached)"
)
says 'holes: claims are bound' '' bound mounted victim attached

# Two tenants have volumes of one name. Of a driver that attaches, kubelet takes them for one
# volume.
twins() { replicas twins "$1" "flexVolume: $(by=kvaps/loop suffix=img image replica)"; }
says 'holes: equal names: one tenant' '*created*' apply < <(
    pod own-a "flexVolume: $(image own-a)"
    pod first "flexVolume: $(by=disks/qcow2 image first)"
    pod like-a-claim "flexVolume: $(by=disks/qcow2 image like-a-claim)" | named holes-victim
    twins 1
)
says 'holes: equal names: the other' '*created' beside apply < <(beside pod own-b "flexVolume: $(image own-b)")
says 'holes: equal names: each runs' '' eval 'runs own-a first like-a-claim && available twins 1 && beside runs own-b'
says 'holes: equal names: each has its own' $'of a\nof b' eval 'leaves own-a "of a"; beside leaves own-b "of b"'
says 'holes: attached, equal names: they write' $'secret\nsecret' eval 'leaves first secret; leaves like-a-claim secret'
says 'holes: attached, equal names: another tenant, inline' '*created' \
    beside apply < <(script=$finds beside pod second "flexVolume: $(by=disks/qcow2 image second)")
says 'holes: attached, equal names: and a claim' '*created' apply < <(script=$finds on_claim victim victim)
says 'holes: attached, equal names: kubelet panics' '*recovered from panic*nil pointer dereference*' \
    panicked disks/qcow2/v
says 'holes: attached, equal names: explain-error knows why' \
    '*an inline volume of a driver that attaches*make it a PersistentVolume*' explains "${last:-nothing}"
says 'holes: attached, equal names: the claim is not served from the other' \
    '*like-a-claim.qcow2 is attached*options name *victim.qcow2*' event victim FailedMount
says 'holes: attached, equal names: the first go' '' remove pod first like-a-claim
says 'holes: attached, equal names: the other tenant is not served from it' \
    '*first.qcow2 is attached*options name *second.qcow2*' beside event second FailedMount
says 'holes: attached, equal names: those who wait go' '' eval 'remove pod victim && beside remove pod second'
says 'holes: attached, equal names: it is detached' kvaps/loop/v settled node-1 volumesAttached kvaps/loop/v
says 'holes: attached, equal names: the claim, alone' '*created' apply < <(script=$finds on_claim victim victim)
says 'holes: attached, equal names: the other tenant, alone' '*created' \
    beside apply < <(script=$finds beside pod second "flexVolume: $(by=disks/qcow2 image second)")
says 'holes: attached, equal names: each has its own' $'nothing\nnothing' eval 'said_by victim && beside said_by second'

# Two replicas with an inline volume of a profile that attaches.
twin() { k get pod --selector app=twins --field-selector status.phase=Running -o 'jsonpath={.items[*].metadata.name}'; }
# Another has the place of the first.
replaced() {
    local first
    first=$(twin)
    remove pod "$first" && available twins 1 && [[ $(twin) != "$first" ]]
}
says 'holes: replicas: the second' '*scaled' k scale deployment twins --replicas 2
says 'holes: replicas: kubelet panics' '*recovered from panic*nil pointer dereference*' panicked kvaps/loop/v
says 'holes: replicas: without an Event' '' \
    eval "k get events --field-selector reason=FailedMount -o name | finds grep twins"
says 'holes: replicas: validate had known' '*error*inline*' eval 'twins 2 | on node-1 flexvol validate -f -'
LIMIT=110 patience=100 says 'holes: replicas: another runs once the first goes' '' replaced
says 'holes: replicas: they go' '' remove deployment twins

# A pod that reads comes first, and one that writes after it.
made() {
    for claim in mounted attached; do
        script='echo made >/v/file; cat /v/file' on_claim "$claim-made" "$claim"
    done | apply >/dev/null
    said_by mounted-made && said_by attached-made && remove pod mounted-made attached-made
}
says 'holes: reader first: the files are made' $'made\nmade' made
says 'holes: reader first: they come' '*created*' apply < <(
    for claim in mounted attached; do
        pod "$claim-reads" "persistentVolumeClaim: {claimName: $claim, readOnly: true}"
    done
)
says 'holes: reader first: they run' '' runs mounted-reads attached-reads
says 'holes: reader first: writers come' '*created*' \
    apply < <(for claim in mounted attached; do on_claim "$claim-writes" "$claim"; done)
says 'holes: reader first: they run, too' '' runs mounted-writes attached-writes
for claim in mounted attached; do
    says "holes: reader first: $claim: it is written" written leaves "$claim-writes" written
    says "holes: reader first: $claim: and read" written k exec "$claim-reads" -- cat /v/file
    says "holes: reader first: $claim: not written by the reader" '*Read-only file system*' \
        leaves "$claim-reads" forbidden
done

# What deploy has put there it puts there again, under the eyes of kubelet.
memory() { pod "$1" "flexVolume: {driver: kept/tmpfs, options: {size: $2}}"; }
# shellcheck disable=SC2016 # on the node
deploy() {
    on node-1 bash -c 'echo "$$" >/run/deploy.pid &&
        exec flexvol deploy kept/tmpfs=tmpfs --plugin-dir "$0" --set policy.maxSize=8Mi' \
        "$PLUGINS" >"$SHARED/deploy" 2>&1 &
    eventually 20 grep -q '"ready"' "$SHARED/deploy"
}
# The side file goes, and the program is cut.
# shellcheck disable=SC2016 # on the node
harmed() { on node-1 bash -c 'rm "$0/.flexvol.json" && : >"$0/tmpfs"' "$PLUGINS/kept~tmpfs"; }
# shellcheck disable=SC2016 # on the node
healed() { on node-1 bash -c 'grep -q maxSize "$0/.flexvol.json" && [[ -s $0/tmpfs ]]' "$PLUGINS/kept~tmpfs"; }
# shellcheck disable=SC2016 # on the node
deploy_ends() {
    on node-1 bash -c 'kill "$(</run/deploy.pid)"'
    eventually 20 grep -q '"leaving"' "$SHARED/deploy"
}
says 'holes: deploy: it is ready' '' deploy
says 'holes: deploy: a pod runs' '*created' eval 'memory kept-1 4Mi | apply && runs kept-1'
says 'holes: deploy: the side file goes, the program is cut' '' harmed
says 'holes: deploy: 60 replicas come at once' '*created' \
    apply < <(replicas crowd 60 'flexVolume: {driver: kept/tmpfs, options: {size: 1Mi}}')
says 'holes: deploy: both are there again' '' eventually 20 healed
LIMIT=120 patience=110 says 'holes: deploy: all 60 run' '' available crowd 60
says 'holes: deploy: pods come' '*created*' apply < <(memory kept-2 4Mi; memory kept-3 64Mi)
says 'holes: deploy: one runs' '' runs kept-2
says 'holes: deploy: the policy is in force' '*8Mi*' event kept-3 FailedMount
says 'holes: deploy: it says what it did' '*"repaired"*' cat "$SHARED/deploy"
says 'holes: deploy: it ends' '' deploy_ends

says 'holes: pods go' '' eval 'remove deployment crowd && remove pod --all && beside remove pod --all'
says 'holes: nothing is left' '' clean node-1
says 'holes: nothing is attached' '' settled node-1 volumesAttached ''
on node-1 flexvol uninstall qcow2 kept/tmpfs --plugin-dir "$PLUGINS" >/dev/null
says 'holes: drivers go' '*kvaps/loop removed' nowhere disks/qcow2 kvaps/loop
