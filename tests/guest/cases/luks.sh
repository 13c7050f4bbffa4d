#!/usr/bin/env bash
# luks: the layer of encryption, on logical volumes. Such a volume is mounted by each pod's mount,
# because kubelet gives that alone the passphrase.
chapter "luks"
LIMIT=60 says "guest: luks: a group" '' quietly once start_lvm
install_driver lvm '{}'
passphrase='p,a"s'\''s $w!o\rd'
sealed="$(volume sealed),\"size\":\"80Mi\",\"luks\":\"true\""
opened=$sealed,$(secret passphrase "$passphrase")

watch_processes "$passphrase"
says "guest: luks: nothing is mounted for the node" "$ok" stage lvm "$sealed"
says "guest: luks: nothing" '' active
LIMIT=120 says "guest: luks: a pod" "$ok" set_up one lvm "$opened"
says "guest: luks: once more" "$ok" set_up one lvm "$opened"
says "guest: luks: write" '' in_volume one lvm write data "of luks"
says "guest: luks: another pod" "$ok" set_up two lvm "$opened"
says "guest: luks: it shares it" "of luks" in_volume two lvm cat data
unwatch
says "guest: luks: on one layer" 1 sh -c 'dmsetup ls --target crypt | wc -l'
dmsetup ls --target crypt | cut -f 1 >/tmp/layer
says "guest: luks: a read-only pod" "$ok" set_up ro lvm "$opened"',"kubernetes.io/readwrite":"ro"'
says "guest: luks: it reads" "of luks" in_volume ro lvm cat data
says "guest: luks: it cannot write" '*[Rr]ead-only file system*' in_volume ro lvm write data no
says "guest: luks: nothing of the passphrase anywhere" '' betrayed
says "guest: luks: a pod with another passphrase gets nothing" '*passphrase does not open*correct it in the Secret*' \
    set_up three lvm "$sealed,$(secret passphrase wrong)"
says "guest: luks: it grows" "$ok" expand lvm "$sealed" "$(target two lvm)" 125829120 83886080
says "guest: luks: with its file system" grown \
    sh -c "stat -f -c '%b %S' '$(target two lvm)' | awk '{print (\$1 * \$2 > 80000000 ? \"grown\" : \$1 * \$2)}'"
for pod in one two ro; do
    says "guest: luks: unmount $pod" "$ok" tear_down "$pod" lvm
    says "guest: luks: pod $pod is gone" '' remove_pod "$pod" lvm
done
says "guest: luks: nothing is left" '' active
says "guest: luks: it is a luks volume" '*LUKS*' \
    sh -c 'export DM_DISABLE_UDEV=1; lvm lvchange -ay data/sealed; head -c 4 /dev/data/sealed;
        lvm lvchange -an data/sealed'
says "guest: luks: not without the passphrase" '*needs a Secret with key*passphrase*' set_up one lvm "$sealed"
says "guest: luks: not unencrypted" '*holds a luks volume*' set_up one lvm "$(volume sealed)"
says "guest: luks: nothing is left of that" '' active
says "guest: luks: read-only alone" "$ok" set_up ro lvm "$opened"',"kubernetes.io/readwrite":"ro"'
says "guest: luks: the data is still there" "of luks" in_volume ro lvm cat data
says "guest: luks: unmounted" "$ok" tear_down ro lvm
canary "guest: luks" lvm "$sealed" "$(volume none),\"luks\":\"true\"" passphrase "$passphrase"
plain_volume() {
    lvm_ lvcreate --yes --size 20M --name plain data && mkfs.ext2 -q /dev/data/plain &&
        lvm_ lvchange --activate n data/plain
}
says "guest: luks: a file system" '' quietly plain_volume
says "guest: luks: is not encrypted" '*the device holds an ext2 file system*' \
    set_up one lvm "$(volume plain),\"luks\":\"true\",$(secret passphrase a)"

says "guest: luks: nothing is left of that, either" '' active

# killed_mount OPTIONS SECONDS...: mount is killed after so many seconds; the next one and the last
# unmount are as ever.
killed_mount() {
    local options=$1 seconds
    shift
    for seconds in "$@"; do
        (set_up one lvm "$options" & wait) >/dev/null 2>&1 &
        sleep "$seconds"
        kill_call lvm mount
        wait
        in_the_end set_up one lvm "$options" >/dev/null
        in_the_end tear_down one lvm >/dev/null
        active
    done
}
blank_volume() {
    lvm_ lvcreate --yes --size 60M --name blank data && blkdiscard -z /dev/data/blank &&
        lvm_ lvchange --activate n data/blank
}
# On a volume of others: nothing says that it is blank but its being so.
LIMIT=120 says "guest: luks: a blank volume" '' quietly blank_volume
LIMIT=120 says "guest: luks: killed in between" '' \
    killed_mount "$(volume blank),\"luks\":\"true\",$(secret passphrase a)" 1 3
# What a killed cryptsetup can leave: a device without a table, which has no node.
says "guest: luks: half a layer" '' quietly sh -c \
    'export DM_DISABLE_UDEV=1; dmsetup create --notable "$(cat /tmp/layer)" && rm -f "/dev/mapper/$(cat /tmp/layer)"'
LIMIT=120 says "guest: luks: is no obstacle" "$ok" set_up ro lvm "$opened"',"kubernetes.io/readwrite":"ro"'
says "guest: luks: and is unmounted" "$ok" tear_down ro lvm
says "guest: luks: without a rest" '' active
