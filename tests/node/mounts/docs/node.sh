# shellcheck shell=bash
# node.sh SCRATCH PAGE BINARY N: a node for the commands of one page of the documentation, in a
# mount and process namespace of its own: nothing of it remains. Runs SCRATCH/0.command to
# N-1.command in this shell, writes .output and .status.
scratch=$1 page=$2 binary=$3 count=$4

# shellcheck source=tests/support/no_kubelet.sh
source "${BASH_SOURCE[0]%/*}/../../../support/no_kubelet.sh" || exit
for directory in /var/lib /run /mnt /srv /var/log /usr/libexec /usr/local /opt; do
    mkdir -p "$directory" && mount -t tmpfs -o mode=755 node "$directory" || exit
done
mount --bind "$scratch" "$scratch" || exit
mkdir -p /usr/local/bin /usr/libexec/kubernetes "$scratch/page" /var/lib/kubelet/volumeplugins
ln -s "$binary" /usr/local/bin/flexvol
ln -s "$binary-kit" /usr/local/bin/flexvol-kit
[[ ! -e ${binary}d ]] || ln -s "${binary}d" /usr/local/bin/flexvold
[[ ! -d $page ]] || cp -r "$page/." "$scratch/page/"
cp "${BASH_SOURCE[0]%/*}/../../../../install.sh" "$scratch/page/"
export FLEXVOL_BINARY=$binary PATH=/usr/local/bin:$PATH LC_ALL=C.UTF-8 HOME=/mnt TMPDIR=/mnt
cd "$scratch/page" || exit

# Whoever is root already needs no sudo, and there is no cluster and no registry: what is sent there
# is only read.
sudo() { "$@"; }
docker() { [[ $1 != build ]] || [[ -d ${*: -1} ]]; }
kubectl() { [[ $* != *'-f -'* ]] || flexvol validate -f -; }

# stand_in_for_kubelet FLAG...: a process that is called kubelet and has these flags.
stand_in_for_kubelet() {
    (exec -a kubelet sh -c 'read -r line' "$@" < <(exec sleep 1000)) >/dev/null 2>&1 &
    until tr '\0' ' ' <"/proc/$!/cmdline" | grep -q '^kubelet '; do sleep 0.01; done
}

# shellcheck disable=SC1091
[[ ! -e setup ]] || source ./setup </dev/null >"$scratch/setup.output" 2>&1 || { cat "$scratch/setup.output"; exit 1; }

for ((number = 0; number < count; number++)); do
    # shellcheck disable=SC1090
    source "$scratch/$number.command" </dev/null >"$scratch/$number.output" 2>&1
    echo $? >"$scratch/$number.status"
done
