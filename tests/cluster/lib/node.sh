#!/usr/bin/env bash
# Drivers and kubelet of a node, under the hands of an admin. Sourced by chapters.

# What both nodes and the controllers see: a file server's directory, so to say.
# shellcheck disable=SC2034 # of the chapters
SHARED=$CLUSTER/shared

# everywhere DRIVER... [OPTION...]: on both nodes and beside the controller manager.
everywhere() {
    local node
    for node in node-1 node-2; do on "$node" flexvol install "$@" --plugin-dir "$PLUGINS"; done
    controllers "$@"
}

# nowhere DRIVER...: uninstalls them there, and says what is left.
# shellcheck disable=SC2153 # not misspelt
nowhere() {
    local node
    for node in node-1 node-2; do on "$node" flexvol uninstall "$@" --plugin-dir "$PLUGINS" && on "$node" ls -A "$PLUGINS"; done
    on world flexvol uninstall "$@" --plugin-dir "$CONTROLLERS" && on world ls -A "$CONTROLLERS"
}

# kubelet_stop NODE: kubelet ends at once, as by kill -9.
kubelet_stop() {
    # shellcheck disable=SC2016 # on the node
    on "$1" bash -c 'kill -KILL "$(</run/kubelet.pid)"; while [[ -d /proc/$(</run/kubelet.pid) ]]; do sleep 0.05; done'
}

# kubelet_start NODE: and it is at work again.
kubelet_start() {
    on "$1" "${here:?}/daemons" kubelet
    eventually 30 on "$1" curl --fail --silent http://127.0.0.1:10248/healthz
}

# kubelet_attaches NODE true|false: kubelet is started again, and attaches volumes itself, or leaves
# that to the controller manager. That notices the second at once, but the first only of a Node that
# is new.
kubelet_attaches() {
    local controllers=true
    [[ $2 == false ]] || controllers=false
    kubelet_stop "$1"
    on "$1" sed -i "s/^enableControllerAttachDetach: .*/enableControllerAttachDetach: $controllers/" /etc/kubelet.yaml
    [[ $2 == false ]] || kube delete node "$1" >/dev/null
    kubelet_start "$1"
    eventually 30 attached_by_controllers "$1" "$controllers"
    kube wait --for=condition=Ready --timeout=30s node "$1" >/dev/null
}
attached_by_controllers() {
    [[ $(kube get node "$1" -o json | jq '.metadata.annotations | has("volumes.kubernetes.io/controller-managed-attach-detach")') == "$2" ]]
}

# boots_again NODE: it has power again, and is in service.
boots_again() { "$here/boot" "$1" && kube taint node "$1" node.kubernetes.io/out-of-service-; }

# kubelet_log NODE: what kubelet has said on it.
kubelet_log() { cat -- "$CLUSTER/log/$1-kubelet.log"; }

# volumes NODE KEY: the volumes in the status of the node: volumesAttached or volumesInUse, sorted.
volumes() {
    kube get node "$1" -o json | jq -r --arg key "$2" '[.status[$key][]? | .name? // .] | sort | join(" ")'
}
has_volumes() { [[ $(volumes "$1" "$2") == "$3" ]]; }
# settled NODE KEY VOLUMES: says what there is, as soon as it is these.
settled() {
    eventually "${patience:-30}" has_volumes "$@"
    volumes "$1" "$2"
}

# bound CLAIM...: they are. A pod that comes earlier waits for long.
bound() { k wait --for=jsonpath='{.status.phase}'=Bound --timeout=20s persistentvolumeclaim "$@" >/dev/null; }

# explains PATTERN TEXT: what `flexvol explain-error` says of it, on one line.
explains() { on node-1 flexvol explain-error "$@" | tr -s ' \n' ' '; }
