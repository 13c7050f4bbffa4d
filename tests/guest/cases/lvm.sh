#!/usr/bin/env bash
# lvm: logical volumes, linear and thin, without udev.
chapter "lvm"

LIMIT=60 says "guest: lvm: a group" '' quietly once start_lvm
install_driver lvm '{}'
linear="$(volume web-1),\"size\":\"100Mi\""
LIMIT=120 says "guest: lvm: with the capabilities of SECURITY.md" '' least shared lvm "$linear"
pods_life "guest: lvm by pods" lvm "$linear" active
says "guest: lvm by pods: no tag is left" '' says_of lv_tags web-1
read_elsewhere='*mounted read-only for another pod*other nodes*end that pod first*'
reader_first "guest: lvm by pods" lvm "$linear" active "$read_elsewhere"
thin="$(volume thin-1),\"size\":\"80Mi\",\"thinPool\":\"pool\""
says "guest: lvm by pods: a reader makes none" '*data/thin-1 is not there*' \
    set_up ro lvm "$thin"',"kubernetes.io/readwrite":"ro"'
says "guest: lvm by pods: a thin one" "$ok" set_up one lvm "$thin"
says "guest: lvm by pods: a thin one, unmount" "$ok" tear_down one lvm
reader_first "guest: lvm by pods: a thin one" lvm "$thin" active
LIMIT=120 says "guest: lvm by pods: killed in between" '' killed shared lvm "$(volume NEW),\"size\":\"20Mi\"" active 1
changed_life "guest: lvm changed" lvm "$linear" active
says "guest: lvm changed: no tag is left" '' says_of lv_tags web-1
# From here on it attaches.
device_life "guest: lvm linear" lvm "$linear" active
equal_names "guest: lvm" lvm "$linear" "$thin" data/thin-1
says "guest: lvm linear: no tag is left" '' says_of lv_tags web-1
says "guest: lvm linear: it has the size" 100.00m says_of lv_size web-1
LIMIT=120 says "guest: lvm: killed in between" '' killed staged lvm "$(volume NEW),\"size\":\"20Mi\"" active 1 2

# Made in part by a call that was killed: what is on it is nobody's.
half_made() {
    lvm_ lvcreate --yes --size 40M --addtag flexvol.being-made --name half data && mkfs.ext4 -q /dev/data/half &&
        lvm_ lvchange --activate n data/half
}
says "guest: lvm: half a volume" '' quietly half_made
says "guest: lvm: is made again" "$ok" stage lvm "$(volume half),\"size\":\"60Mi\",\"fsType\":\"ext4\""
says "guest: lvm: with the size asked for" 60.00m says_of lv_size half
says "guest: lvm: says who uses it" 'flexvol.activated.*:*-*,flexvol.in-use.*' says_of lv_tags half
node_tag=${last#*,}
says "guest: lvm: the group has no more for it" '*nsufficient free space*give group data more disks*' \
    expand lvm "$(volume half)" "$(staged lvm)" 2000000000 83886080
says "guest: lvm: and is let go" "$ok" unstage lvm

says "guest: lvm thin: mounted" "$ok" stage lvm "$thin"
says "guest: lvm thin: it is thin" thin,sparse says_of lv_layout thin-1
says "guest: lvm thin: it grows" "$ok" expand lvm "$thin" "$(staged lvm)" 209715200 83886080
says "guest: lvm thin: with its file system" "at least 180" capacity 180
says "guest: lvm thin: it does not shrink" "$ok" expand lvm "$thin" "$(staged lvm)" 94371840 83886080
says "guest: lvm thin: and keeps its size" 200.00m says_of lv_size thin-1
says "guest: lvm thin: unmounted" "$ok" unstage lvm
says "guest: lvm thin: nothing is left" '' active

# What others do with their volumes.
says "guest: lvm: somebody's data" '' quietly sh -c \
    'export DM_DISABLE_UDEV=1; lvm lvcreate --yes --size 40M --name raw data &&
        echo precious | dd of=/dev/data/raw bs=4096 seek=5 conv=notrunc'
says "guest: lvm: is not formatted" '*holds data at offset 20480*nothing is formatted over it*' \
    stage lvm "$(volume raw)"
says "guest: lvm: it stays active" 'data-raw*' active
says "guest: lvm: and what it was" precious sh -c 'dd if=/dev/data/raw bs=4096 skip=5 count=1 status=none | head -n 1'
says "guest: lvm: mounted by others" '' quietly sh \
    -c 'wipefs -qa /dev/data/raw; mkfs.ext4 -qF /dev/data/raw && mkdir /tmp/other && mount /dev/data/raw /tmp/other'
says "guest: lvm: is refused" '*in use by others on this node, mounted at /tmp/other*' stage lvm "$(volume raw)"
says "guest: lvm: then it is free" '' umount /tmp/other
# As a file system is that is just ending: in use, and mounted nowhere that we see.
on_its_end() {
    unshare --mount sh -c 'mount /dev/data/raw /tmp/other; : >/tmp/there; sleep 4' &
    until [[ -e /tmp/there ]]; do sleep 0.05; done
    stage lvm "$(volume raw)"
    wait
}
says "guest: lvm: a file system on its end is waited for" "$ok" on_its_end
says "guest: lvm: its volume is let go" "$ok" unstage lvm
says "guest: lvm: one that was active" "$ok" stage lvm "$(volume raw)"
says "guest: lvm: is let go" "$ok" unstage lvm
says "guest: lvm: and stays active" 'data-raw*(*)' active
says "guest: lvm: without a tag" '' says_of lv_tags raw
says "guest: lvm: swap of the node" '' \
    quietly sh -c 'wipefs -qa /dev/data/raw; mkswap -q /dev/data/raw && swapon /dev/data/raw'
says "guest: lvm: is refused, too" '*in use by others on this node*' stage lvm "$(volume raw)"
says "guest: lvm: until it is not" '' \
    sh -c 'swapoff /dev/data/raw; wipefs -qa /dev/data/raw; DM_DISABLE_UDEV=1 lvm lvchange -an data/raw'

# Another node's.
says "guest: lvm: another node has it" '' quietly lvm_ lvchange --addtag flexvol.in-use.node-7 data/web-1
says "guest: lvm: it is refused" \
    '*data/web-1 is in use by node node-7*lvchange --deltag flexvol.in-use.node-7 data/web-1*' \
    stage lvm "$linear"
says "guest: lvm: and rests" '' active
says "guest: lvm: its tag stays" flexvol.in-use.node-7 says_of lv_tags web-1
says "guest: lvm: before a reboot this node had it" '' \
    quietly lvm_ lvchange --deltag flexvol.in-use.node-7 --addtag "$node_tag" data/web-1
says "guest: lvm: and did not make its device to the end" '' quietly sh -c \
    'export DM_DISABLE_UDEV=1; dmsetup create --notable data-web--1 && rm -f /dev/mapper/data-web--1'
says "guest: lvm: it is mounted" "$ok" stage lvm "$linear"
says "guest: lvm: it is let go" "$ok" unstage lvm
says "guest: lvm: and its tag" '' says_of lv_tags web-1
says "guest: lvm: another node has the thin pool" '' quietly lvm_ lvchange --addtag flexvol.in-use.node-7 data/thin-1
says "guest: lvm: no other volume of it is mounted" '*data/thin-1 is in use by node node-7*' \
    stage lvm "$(volume thin-2),\"size\":\"80Mi\",\"thinPool\":\"pool\""

says "guest: lvm: no such group" '*volume group nosuch is not on this node*vgcreate*' \
    stage lvm '"volumeGroup":"nosuch","volume":"a"'
says "guest: lvm: no such volume" '*logical volume data/nosuch is not there*lvcreate*option size*' \
    stage lvm "$(volume nosuch)"
says "guest: lvm: no such pool" '*Pool nosuch not found*correct option thinPool*' \
    stage lvm "$(volume a),\"size\":\"1Gi\",\"thinPool\":\"nosuch\""
says "guest: lvm: too large" '*insufficient free space*vgextend*' stage lvm "$(volume a),\"size\":\"1Ti\""
says "guest: lvm: a pool is no volume" '*data/pool is a pool*' stage lvm "$(volume pool)"
says "guest: lvm: nothing of a failure is left" '' active
says "guest: lvm: and no volume" 'half pool raw shared-after-1 staged-after-1 staged-after-2 thin-1 web-1 ' \
    sh -c 'DM_DISABLE_UDEV=1 lvm lvs --noheadings -o lv_name data | tr -d " " | tr "\n" " "'
