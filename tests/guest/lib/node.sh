#!/usr/bin/env bash
# The node: drivers, pods and their volumes, and a network that fails on demand. Sourced by
# tests/guest/test.
#
# Every address of 127.0.0.0/8 is a server of its own, because the fault is one address's:
# name_server gives it a name, drop_server makes it silent (a pulled cable, not a refusal),
# heal_server fixes it.

PLUGINS=/tmp/plugins KUBELET=/tmp/kubelet

# Whose driver of that name is called.
vendor=example

# install_driver NAME SIDE_FILE: a driver as kubelet finds it. Servers of the guest, its group of
# LVM and its keyring are allowed, unless the side file says which are.
install_driver() {
    local directory=$PLUGINS/$vendor~$1 \
        allowed='"servers":["*","127.0.0.0/8","::1","localhost"],"volumeGroups":"*","keyringRoots":"/etc/ceph"'
    case $2 in
    *'"servers"'*) ;;
    *'"policy":{}'*) set -- "$1" "${2/'"policy":{'/"\"policy\":{$allowed"}" ;;
    *'"policy":{'*) set -- "$1" "${2/'"policy":{'/"\"policy\":{$allowed,"}" ;;
    '{}') set -- "$1" "{\"policy\":{$allowed}}" ;;
    *) set -- "$1" "{\"policy\":{$allowed},${2#'{'}" ;;
    esac
    mkdir -p "$directory"
    cp flexvol "$directory/$1"
    printf '%s\n' "$2" >"$directory/.flexvol.json"
}

# target POD DRIVER: where the pod's only volume appears.
target() {
    echo "$KUBELET/pods/$1/volumes/$vendor~$2/v"
}

# set_up POD DRIVER OPTIONS: kubelet's mount; OPTIONS is the inside of a JSON object.
set_up() {
    local directory
    directory=$(target "$1" "$2")
    mkdir -p "$directory"
    "${caller[@]}" "$PLUGINS/$vendor~$2/$2" mount "$directory" "{$3}"
}

# tear_down POD DRIVER: kubelet's unmount.
tear_down() {
    "${caller[@]}" "$PLUGINS/$vendor~$2/$2" unmount "$(target "$1" "$2")"
}

# in_the_end COMMAND...: again and again, as kubelet does, until it is a success. What it said
# before is in /tmp/answer.
in_the_end() {
    local answer
    until answer=$("$@") && [[ $answer == "$ok" ]]; do
        echo "$answer" >/tmp/answer
        sleep 0.5
    done
    rm -f /tmp/answer
    echo "$answer"
}

# in_volume POD DRIVER COMMAND...: what a container of the pod does, in the volume.
in_volume() {
    local directory
    directory=$(target "$1" "$2")
    shift 2
    [[ $(</proc/self/mountinfo) == *" $directory "* ]] || { echo "nothing is mounted at $directory"; return 1; }
    cd "$directory" && "$@"
}

write() {
    printf '%s\n' "$2" >"$1"
}

# kubelet removes the volume's directory, and then the pod's.
remove_pod() {
    rmdir "$(target "$1" "$2")" && rmdir -p --ignore-fail-on-non-empty "$KUBELET/pods/$1/volumes/$vendor~$2"
}

mounted_types() {
    awk -v at="$KUBELET/" 'index($5, at) == 1 {for (i = 7; i < NF; i++) if ($i == "-") print $(i + 1)}' \
        /proc/self/mountinfo
}

# How many file systems are mounted below kubelet's directory, however often each is.
mounted_devices() {
    awk -v at="$KUBELET/" 'index($5, at) == 1 {print $3}' /proc/self/mountinfo | sort -u | wc -l
}

secret() {
    printf '"kubernetes.io/secret/%s":"%s"' "$1" "$(printf %s "$2" | base64 -w0)"
}

network() {
    ip link set lo up
    echo '127.0.0.1 localhost guest' >/etc/hosts
    # There is no name server, and who asks one all the same need not wait long.
    echo 'options timeout:1 attempts:1' >/etc/resolv.conf
    modprobe nf_tables
    nft -f - <<'NFT'
table ip fault {
    set silent { type ipv4_addr; }
    chain input { type filter hook input priority 0; }
}
NFT
    usual_rules
}

# What drop_server goes by, and nothing else.
usual_rules() {
    nft flush chain ip fault input
    nft add rule ip fault input ip daddr @silent drop
    nft add rule ip fault input ip saddr @silent drop
}

name_server() {
    echo "$2 $1" >>/etc/hosts
}

address_of() {
    awk -v name="$1" '$2 == name {print $1}' /etc/hosts
}

drop_server() {
    nft add element ip fault silent "{ $(address_of "$1") }"
}

heal_server() {
    nft delete element ip fault silent "{ $(address_of "$1") }"
}
