#!/usr/bin/env bash
# The agents of two nodes, as `manifest agent` prints them, keep one image from two pods. Sourced by
# tests/cluster/chapter.
# shellcheck source=tests/cluster/lib/node.sh
. "${here:?}/lib/node.sh"
# shellcheck source=tests/cluster/lib/images.sh
. "$here/lib/images.sh"
# shellcheck source=tests/cluster/lib/agents.sh
. "$here/lib/agents.sh"

# user NAME NODE: a pod that mounts the image.
user() { node=$2 pod "$1" "flexVolume: {driver: flexvol/image, fsType: ext4, options: {file: db.img, size: 32Mi}}"; }
restart() {
    of_agents delete pod --all --wait=true >/dev/null
    rolled_out
}

namespace agent >/dev/null
mkdir -p "$SHARED"
LIMIT=100 says 'agent: image' '' import flexvold "$CLUSTER/bin/flexvold" 1 node-1 node-2
says 'agent: drivers are installed' '' drivers
says 'agent: the manifest is applied, strictly' '*created*' kube apply --validate=strict --filename - < <(manifest)
LIMIT=90 says 'agent: an agent on each node' '*successfully rolled out' rolled_out
says 'agent: a pod wants the image' '*created*' apply < <(user first node-1)
says 'agent: it runs' '' runs first
says 'agent: and holds it' 'first node-1' locked 'first node-1'
says 'agent: one of the other node wants it' '*created*' apply < <(user second node-2)
says 'agent: and hears who has it' '*is held by pod *first on node node-1*' event second FailedMount
LIMIT=90 says 'agent: the agents are replaced' '*successfully rolled out' restart
says 'agent: it is still held' 'first node-1' locked 'first node-1'
says 'agent: doctor finds nothing wrong with it' '0 errors, 0 warnings, 0 notes*' \
    on node-1 flexvol doctor --check agent --plugin-dir "$PLUGINS"
says 'agent: the first writes, and goes' '' eval 'k exec first -- sh -c "echo one >/v/file" && remove pod first'
LIMIT=200 patience=180 says 'agent: the second has it, and its data' one \
    eval 'runs second && k exec second -- cat /v/file'
says 'agent: and holds it' 'second node-2' locked 'second node-2'
says 'agent: it goes' '' remove pod second
says 'agent: nothing is held' '' locked ''
LIMIT=120 says 'agent: the manifest is removed' '*deleted*' removed
for each in node-1 node-2; do
    on "$each" flexvol uninstall image --plugin-dir "$PLUGINS" >/dev/null
    says "agent: nothing is left on $each" '' clean "$each"
done
