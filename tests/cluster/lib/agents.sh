#!/usr/bin/env bash
# The agents of both nodes and the controller, as `manifest agent` prints them. Sourced by chapters.

manifest() { on node-1 flexvold manifest agent --image tests.flexvol.dev/flexvold:1; }
of_agents() { kube --namespace flexvol "$@"; }
rolled_out() { of_agents rollout status --timeout=60s daemonset/flexvol-agent 2>&1 | tail -n 1; }
drivers() {
    local node
    echo "{\"agent\": {\"fence\": \"pod\"}, \"policy\": {\"imageRoots\": [\"$SHARED\"]}}" >"$SHARED/settings.json"
    for node in node-1 node-2; do
        on "$node" flexvol install image --plugin-dir "$PLUGINS" --settings "$SHARED/settings.json" >/dev/null
    done
}
# locks: the pods that hold something, and their nodes.
locks() { of_agents get flexattachments -o json | jq -r '.items[].spec.holders[] | "\(.podName) \(.node)"'; }
is_locked() { [[ $(locks) == "$1" ]]; }
locked() {
    eventually 30 is_locked "$1"
    locks
}
# removed: all of it, the pods first: a namespace that still has some is looked at again much later.
removed() {
    of_agents delete --cascade=foreground --timeout=40s daemonset,deployment --all
    manifest | kube delete --ignore-not-found --timeout=60s --filename -
}
