#!/usr/bin/env bash
# Devices whose records are lost, as with a kubelet in a container that has a /run of its own:
# another pod may use them, and the last unmount lets them go.
chapter "lost"
name_server nbd-lost.test 127.0.6.4
modprobe nbd nbds_max=2
mkdir -p /tmp/images
install_driver nbd '{"policy":{"imageRoots":["/tmp/images"]}}'
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

# brought: what is on the node of devices.
brought() {
    nbds
    dmsetup ls --target crypt 2>/dev/null | grep -v '^No devices'
    finds pgrep -a qemu-storage-da
}

lost='"server":"nbd-lost.test","port":"10810","connectTimeout":"1","timeout":"3"'
is_lost "guest: lost: nbd" nbd "$lost,\"export\":\"plain\"" brought
is_lost "guest: lost: luks" nbd "$lost,\"export\":\"sealed\",\"luks\":\"true\",$(secret passphrase 'p,a"s')" brought

install_driver lvm '{}'
lvm_ vgs data >/dev/null 2>&1 || LIMIT=60 says "guest: lost: a group" '' quietly once start_lvm
# What is active, and the volumes' tags.
plain_left() {
    active
    says_of lv_tags lost
}
sealed_left() {
    active
    says_of lv_tags sealed-2
}
logical="$(volume lost),\"size\":\"40Mi\""
is_lost "guest: lost: a logical volume" lvm "$logical" plain_left
says "guest: lost: one that was active" '' quietly lvm_ lvchange --activate y data/lost
says "guest: lost: is mounted" "$ok" set_up one lvm "$logical"
lose
says "guest: lost: and let go" "$ok" tear_down one lvm
says "guest: lost: and stays active" 'data-lost*(*)' active
says "guest: lost: without a tag" '' says_of lv_tags lost
says "guest: lost: until it is not" '' quietly lvm_ lvchange --activate n data/lost
is_lost "guest: lost: luks on one" lvm \
    "$(volume sealed-2),\"size\":\"40Mi\",\"luks\":\"true\",$(secret passphrase 'p,a"s')" sealed_left

is_lost "guest: lost: an image" nbd '"file":"lost.qcow2","size":"16Mi"' brought
is_lost "guest: lost: a raw image" nbd '"file":"lost.img","imageFormat":"raw","size":"16Mi"' brought
