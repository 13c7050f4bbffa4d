#!/usr/bin/env bash
# Devices whose records are lost, as with a kubelet in a container that has a /run of its own: another pod may use them, and the last
# unmount lets them go.
chapter "lost"
name_server nbd-lost.test 127.0.6.4
modprobe nbd nbds_max=2
install_driver nbd '{}'
serve() {
    mkdir -p /srv/lost
    truncate -s 16M /srv/lost/plain
    truncate -s 48M /srv/lost/sealed
    printf '[generic]\n    port = 10810\n    user = root\n    group = root\n' >/srv/lost/conf
    printf '[%s]\n    exportname = /srv/lost/%s\n' plain plain sealed sealed >>/srv/lost/conf
    nbd-server -C /srv/lost/conf
    answers 10810
}
says "guest: lost: nbd-server serves" '' quietly once serve

lose() {
    rm -rf /run/flexvol
}
# brought: what is on the node of devices.
brought() {
    nbds
    dmsetup ls --target crypt 2>/dev/null | grep -v '^No devices'
}

# is_lost NAME OPTIONS: with two pods, and a record that neither has.
is_lost() {
    local name=$1 options=$2
    LIMIT=120 says "$name: a pod" "$ok" set_up one nbd "$options"
    says "$name: written" '' in_volume one nbd write lost "of $name"
    lose
    LIMIT=120 says "$name: another pod" "$ok" set_up two nbd "$options"
    says "$name: it shares it" "of $name" in_volume two nbd cat lost
    says "$name: the first leaves" "$ok" tear_down one nbd
    says "$name: the other has it still" "of $name" in_volume two nbd cat lost
    lose
    LIMIT=60 says "$name: the last leaves" "$ok" tear_down two nbd
    says "$name: nothing is left of it" '' brought
    LIMIT=120 says "$name: a pod once more" "$ok" set_up one nbd "$options"
    says "$name: what was written" "of $name" in_volume one nbd cat lost
    says "$name: the pod leaves" "$ok" tear_down one nbd
    says "$name: nothing is left" '' brought
}
lost='"server":"nbd-lost.test","port":"10810","connectTimeout":"1","timeout":"3"'
is_lost "guest: lost: nbd" "$lost,\"export\":\"plain\""
is_lost "guest: lost: luks" "$lost,\"export\":\"sealed\",\"luks\":\"true\",$(secret passphrase 'p,a"s')"
