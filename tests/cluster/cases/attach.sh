#!/usr/bin/env bash
# Drivers that attach: through the controller manager, by kubelet itself, on two nodes, and when a
# node goes. Sourced by tests/cluster/chapter.
# shellcheck source=tests/cluster/lib/node.sh
. "${here:?}/lib/node.sh"

# The kit's reference, as it is, but for where its images are, and for a line about each call.
reference() {
    sed -e "s|^images=.*|images=$SHARED/loops|" \
        -e "/^verb=/a printf '%s %s\\\\n' \"\$(hostname)\" \"\$verb\" >>$SHARED/calls" \
        "$here/../../src/kit/cli/check/template/loop.sh" >"$SHARED/loop"
    chmod 755 "$SHARED/loop"
}

# calls: the calls of the reference, each word once in a row. What comes at any time is left out.
calls() { grep -vE ' (init|getvolumename|isattached)$' "$SHARED/calls" | uniq | paste -sd, ; }
# called LINE: that line comes.
called() { eventually "${patience:-30}" grep -qx "$1" "$SHARED/calls" && echo "$1"; }

# qcow2 NAME: a claim of an image that all nodes see.
qcow2() { claim "$1" "{driver: flexvol/qcow2, fsType: ext4, options: {file: $1.qcow2, size: 64Mi}}"; }

sees() { k exec "$1" -- cat /v/file; }
writes() { k exec "$1" -- sh -c "echo '$2' >/v/file && sync"; }

namespace attach >/dev/null
mkdir -p "$SHARED/loops"
reference
says 'attach: claims are made' '*created*' apply < <(
    qcow2 shared
    modes=ReadWriteOnce qcow2 moves
    modes=ReadWriteOnce qcow2 lost
    claim profile "{driver: kvaps/loop, options: {file: $SHARED/profile.img, size: 64m}}"
    for name in loop own lost-loop; do
        claim "$name" "{driver: kit/loop, fsType: ext4, options: {file: $name, size: 16Mi}}"
    done
)
says 'attach: claims are bound' '' bound shared moves lost profile loop own lost-loop

# Before the controller manager has the driver. Kubelet waits for it, and gives up after two
# minutes: without an Event, in its log alone.
on node-1 flexvol install qcow2 --plugin-dir "$PLUGINS" --set attach=true \
    --set "policy.imageRoots=[\"$SHARED\"]" >/dev/null
on_claim alone shared | apply >/dev/null
says 'attach: the controller manager lacks the driver: kubelet asks' flexvol/qcow2/attach-shared \
    settled node-1 volumesInUse flexvol/qcow2/attach-shared
says 'attach: the controller manager lacks the driver: and waits' '' \
    eval 'volumes node-1 volumesAttached; k get events --field-selector reason=FailedAttachVolume --output name'
remove pod alone

says 'attach: qcow2 by side file, on nodes and beside the controllers' '*flexvol/qcow2 installed*' \
    everywhere qcow2 --set attach=true --set "policy.imageRoots=[\"$SHARED\"]"
says 'attach: a profile that attaches' '*kvaps/loop installed*' \
    everywhere kvaps/loop --set "policy.imageRoots=[\"$SHARED\"]"
says "attach: the kit's reference" '*kit/loop installed*' everywhere kit/loop --binary "$SHARED/loop"

says 'attach: pods are made' '*created*' apply < <(
    for name in shared-1 shared-2; do on_claim "$name" shared; done
    on_claim profile profile
    for name in loop-1 loop-2; do on_claim "$name" loop; done
    node="node-2"
    on_claim moves-2 moves
)
says 'attach: pods run' '' runs shared-1 shared-2 profile loop-1 loop-2 moves-2
all='flexvol/qcow2/attach-shared kit/loop/attach-loop kvaps/loop/attach-profile'
says 'attach: volumesAttached' "$all" settled node-1 volumesAttached "$all"
says 'attach: volumesInUse' "$all" settled node-1 volumesInUse "$all"
says 'attach: qcow2: two pods of a node have one file system' 'from shared-1' \
    eval 'writes shared-1 "from shared-1" && sees shared-2'
says 'attach: reference: two pods of a node have one file system' 'from loop-1' \
    eval 'writes loop-1 "from loop-1" && sees loop-2'
says 'attach: the controllers ask the reference whether it is attached' 'world isattached' called 'world isattached'

# One node at a time.
says 'attach: ReadWriteOnce: a pod on another node waits' '*created*' apply < <(on_claim moves-1 moves)
says 'attach: ReadWriteOnce: Event' '*Volume is already used by pod(s) moves-2' event moves-1 FailedAttachVolume
says 'attach: ReadWriteOnce: explain-error knows the way' '*another node still has the volume*out-of-service*' \
    explains "${last:-nothing}"
says 'attach: ReadWriteOnce: the first writes' '' writes moves-2 'from node-2'
says 'attach: ReadWriteOnce: the first goes' '' remove pod moves-2
says 'attach: ReadWriteOnce: the next has its data' 'from node-2' eval 'runs moves-1 && sees moves-1'
says 'attach: ReadWriteOnce: the first node has nothing' '' clean node-2

# As long as only the image itself keeps two nodes apart.
says 'attach: ReadWriteMany: a pod on another node waits' '*created*' apply < <(node="node-2" on_claim shared-3 shared)
says 'attach: ReadWriteMany: two nodes never write to one image' '*Failed to get "write" lock*' \
    event shared-3 FailedMount
remove pod shared-3

# Kubelet attaches by itself.
cp -- "$SHARED/calls" "$SHARED/calls-before"
: >"$SHARED/calls"
says 'attach: kubelet attaches itself: starts again' '' kubelet_attaches node-2 true
says 'attach: kubelet attaches itself: a pod is made' '*created*' apply < <(node="node-2" on_claim own own)
says 'attach: kubelet attaches itself: it runs' '' runs own
says 'attach: kubelet attaches itself: and goes' '' remove pod own
says 'attach: kubelet attaches itself: who called what' \
    "$(printf 'node-2 %s,' attach waitforattach mountdevice mount unmount unmountdevice)node-2 detach" \
    eval "called 'node-2 detach' >/dev/null; calls"
says 'attach: kubelet attaches itself: no longer' '' kubelet_attaches node-2 false

# A node goes, with what is attached to it. It takes a while until the controllers are sure, so the
# rest is played meanwhile.
says 'attach: node goes: pods are made' '*created*' \
    apply < <(node="node-2"; on_claim lost-loop lost-loop; on_claim lost-2 lost)
says 'attach: node goes: they write' '' eval "runs lost-2 lost-loop && writes lost-2 'from a lost node'"
says 'attach: node goes: without power' '' "$here/kill" node-2
says 'attach: node goes: it is out of service' '*tainted*' \
    kube taint node node-2 node.kubernetes.io/out-of-service=nodeshutdown:NoExecute
says 'attach: node goes: another takes over' '*created*' apply < <(on_claim lost-1 lost)

# The last pod goes: kubelet unmounts, and the controllers detach.
mv -- "$SHARED/calls-before" "$SHARED/calls"
says 'attach: pods go' '' remove pod shared-1 shared-2 profile loop-1 loop-2
says 'attach: detached with the last pod' flexvol/qcow2/attach-moves \
    settled node-1 volumesAttached flexvol/qcow2/attach-moves
sequence='world attach,node-1 waitforattach,node-1 mountdevice,node-1 mount,node-1 waitforattach,node-1 mount'
says 'attach: reference: who called what' "$sequence,node-1 unmount,node-1 unmountdevice,world detach" \
    eval "called 'world detach' >/dev/null; calls"

# A relative file lies below the first image root, and the controllers have another one.
echo '{"attach": true}' >"$SHARED/settings.json"
says 'attach: side files differ: the controllers attach something else' '*flexvol/qcow2 configured*' \
    controllers qcow2 --settings "$SHARED/settings.json"
says 'attach: side files differ: a pod is made' '*created*' apply < <(on_claim differs shared)
says 'attach: side files differ: the Event says so' \
    "*/shared.qcow2 is attached *, but its options name *$SHARED/shared.qcow2: *let the side files *say the same" \
    event differs FailedMount
remove pod differs
says 'attach: side files differ: no longer' '*flexvol/qcow2 configured*' \
    controllers qcow2 --set "policy.imageRoots=[\"$SHARED\"]"

: >"$SHARED/calls"
LIMIT=120 patience=100 says 'attach: node goes: the data is there' 'from a lost node' eval 'runs lost-1 && sees lost-1'
says 'attach: node goes: nothing is attached to it' '' settled node-2 volumesAttached ''
says 'attach: node goes: the reference was told' 'world detach' called 'world detach'
says 'attach: node goes: it comes back' '*untainted*' boots_again node-2
says 'attach: node goes: and has nothing' '' clean node-2

says 'attach: the last pods go' '' remove pod moves-1 lost-1
says 'attach: nothing is left' '' clean node-1
says 'attach: nothing is attached' '' \
    eval "settled node-1 volumesAttached ''; losetup --noheadings --raw --output BACK-FILE | finds grep -F '$SHARED/'"
says 'attach: drivers go' '*kit/loop removed' nowhere qcow2 kvaps/loop kit/loop
