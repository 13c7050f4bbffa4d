#!/usr/bin/env bash
# shellcheck disable=SC2034 # programs use what is set
# Where a cluster of the tests is, and how a command gets into it. Sourced by the programs beside
# this directory.
#
#   $CLUSTER/world/pid           the world: etcd, the API server and the controllers, in namespaces of their own
#   $CLUSTER/NODE/pid            a node: containerd, kubelet and the drivers, in namespaces of their own
#   $CLUSTER/NODE/disk           what a node keeps when it is switched off
#   $CLUSTER/log                 what each program says
#
# Process 1 of each is a shell: when it is killed, the kernel ends every process and drops every
# mount of its namespaces.

here=$(dirname -- "$(dirname -- "$(realpath -- "${BASH_SOURCE[0]}")")")
CLUSTER=$(realpath -m -- "${FLEXVOL_CLUSTER:-${TMPDIR:-/tmp}/flexvol-cluster}")
# Kubernetes' programs collect garbage less often, which saves a fourth of what kubectl costs.
export GOGC=400
export CLUSTER KUBECONFIG=$CLUSTER/admin.kubeconfig
# Some servers of the tests are installed elsewhere.
export CALLER_PATH=${CALLER_PATH:-$PATH}
export PATH="$CLUSTER/programs:$CLUSTER/bin:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"

# The address of the world, which is the API server's, and the network of the services.
readonly WORLD=10.77.0.1 SERVICES=10.96.0
# NODE's address, and the network of its pods.
node_address() { echo "10.77.0.1${1##*-}"; }
node_pods() { echo "10.78.${1##*-}"; }

# The control group of NODE in each hierarchy: clusters side by side have their own.
group_of() { echo "flexvol-cluster-$(cksum <<<"$CLUSTER" | cut -d ' ' -f 1)-$1"; }

die() {
    printf '%s: %s\n' "${0##*/}" "$*" >&2
    exit 1
}

# Time limits of the tests end what hangs and judge nothing: all of them are multiplied by this, and
# tests/run says how busy the machine is.
readonly PACE=$((2 * ${FLEXVOL_SLOWDOWN:-1}))

# eventually SECONDS COMMAND...: until it succeeds. Most commands start kubectl, which costs more
# processor time than what is waited for, so the pauses grow: 0.1 s, after four seconds 0.5 s.
eventually() {
    local end=$((SECONDS + $1 * PACE)) tries=0
    shift
    until "$@" >/dev/null 2>&1; do
        [[ $SECONDS -lt $end ]] || return 1
        tries=$((tries + 1))
        sleep "0.$((tries < 16 ? 1 + tries / 4 : 5))"
    done
}

# alive PLACE: the world, or a node, runs.
alive() {
    [[ -s $CLUSTER/$1/pid ]] && kill -0 "$(<"$CLUSTER/$1/pid")" 2>/dev/null
}

gone() { ! alive "$1"; }

# enter PLACE COMMAND...: in its namespaces.
enter() {
    local place=$1
    alive "$place" || die "$place does not run: start it with tests/cluster/up or boot"
    shift
    nsenter --target "$(<"$CLUSTER/$place/pid")" --mount --uts --ipc --net --pid --cgroup -- "$@"
}

# begin PLACE COMMAND...: the command becomes process 1 of new namespaces. The kernel ends them with
# the process that waits for it, which is therefore a session of its own.
begin() {
    local place=$1 waits
    shift
    setsid unshare --mount --propagation private \
        --pid --fork --kill-child --mount-proc --net --uts --ipc --cgroup -- "$@" \
        </dev/null >>"$CLUSTER/log/$place.log" 2>&1 &
    waits=$!
    disown "$waits"
    eventually 10 pgrep --parent "$waits" || die "$place: no namespaces: $(tail -n 3 -- "$CLUSTER/log/$place.log")"
    pgrep --parent "$waits" >"$CLUSTER/$place/pid"
}

# end PLACE: at once, as if it lost power.
end() {
    ! alive "$1" || kill -KILL "$(<"$CLUSTER/$1/pid")"
    eventually 30 gone "$1" || die "$1: process $(<"$CLUSTER/$1/pid") does not end"
    rm -f -- "$CLUSTER/$1/pid"
}

# free_loops PREFIX: detaches the loop devices over files below it.
free_loops() {
    losetup --noheadings --raw --output NAME,BACK-FILE | awk -v prefix="$1" 'index($2, prefix) == 1 { print $1 }' |
        while read -r device; do losetup --detach "$device"; done
}

# daemon NAME COMMAND...: beside this shell, its output in the log, its pid in /run, of which each
# place has its own.
daemon() {
    local name=$1
    shift
    setsid -- "$@" </dev/null >>"$CLUSTER/log/$(hostname)-$name.log" 2>&1 &
    echo "$!" >"/run/$name.pid"
    disown "$!"
}

# over DIRECTORY: this machine's, with what is written on $disk instead.
over() {
    # shellcheck disable=SC2154 # the caller says which
    mkdir -p -- "$disk/over$1" "$disk/work$1"
    mount -t overlay -o "lowerdir=$1,upperdir=$disk/over$1,workdir=$disk/work$1" overlay "$1"
}

# rest: what process 1 does when all else is done. It reaps what others leave.
rest() {
    while :; do
        sleep 3600 &
        wait "$!" || true
    done
}

# kubeconfig FILE TOKEN: the user with this token, at the API server.
kubeconfig() {
    (umask 077 && cat >"$1") <<YAML
apiVersion: v1
kind: Config
current-context: cluster
contexts: [{name: cluster, context: {cluster: cluster, user: user}}]
clusters: [{name: cluster, cluster: {server: "https://$WORLD", certificate-authority: $CLUSTER/pki/ca.crt}}]
users: [{name: user, user: {token: $2}}]
YAML
}
