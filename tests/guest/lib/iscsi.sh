#!/usr/bin/env bash
# The kernel's iSCSI target (LIO). Sourced by tests/guest/test.

readonly IQN=iqn.2020-01.test:web IQN_CHAP=iqn.2020-01.test:chap
readonly IQN_MUTUAL=iqn.2020-01.test:mutual TARGET_PASSWORD='the target, itself $'
readonly CHAP_PASSWORD='p,a"s'\''s $w!o\rd'

# target IQN [USER PASSWORD]: one with two units, for everybody or for whom knows the password.
target_with() {
    local name=$1 disk lun=0 at
    at=/sys/kernel/config/target/iscsi/$name/tpgt_1
    mkdir -p "$at/np/0.0.0.0:3260" || return
    for disk in disk0 disk1; do
        mkdir -p "$at/lun/lun_$lun"
        ln -s "/sys/kernel/config/target/core/iblock_0/${name##*:}-$disk" "$at/lun/lun_$lun/$disk"
        lun=$((lun + 1))
    done
    echo 1 >"$at/attrib/generate_node_acls"
    echo 0 >"$at/attrib/demo_mode_write_protect"
    echo 0 >"$at/attrib/authentication"
    if [[ -n ${2:-} ]]; then
        printf %s "$2" >"$at/auth/userid"
        printf %s "$3" >"$at/auth/password"
        echo 1 >"$at/attrib/authentication"
    fi
    echo 1 >"$at/enable"
}

# proves_itself: the target's own name and password, which it says to whom it has let in.
proves_itself() {
    local at=/sys/kernel/config/target/iscsi/$IQN_MUTUAL/tpgt_1/auth
    printf %s bob >"$at/userid_mutual" && printf %s "$TARGET_PASSWORD" >"$at/password_mutual"
}

# guarded 1|0: only who knows alice's password may ask for targets, and asks a portal that proves
# itself, or everybody may.
guarded() {
    local at=/sys/kernel/config/target/iscsi/discovery_auth
    printf %s alice >"$at/userid" && printf %s "$CHAP_PASSWORD" >"$at/password" &&
        printf %s bob >"$at/userid_mutual" && printf %s "$TARGET_PASSWORD" >"$at/password_mutual" &&
        echo "$1" >"$at/enforce_discovery_auth"
}

start_iscsi() {
    local target disk at loop
    mkdir -p /srv/iscsi /run/lock
    modprobe -a configfs target_core_mod target_core_iblock iscsi_target_mod iscsi_tcp sd_mod crc32c_intel 2>/dev/null
    mountpoint -q /sys/kernel/config || mount -t configfs c /sys/kernel/config || return
    for target in web chap mutual; do
        for disk in disk0 disk1; do
            truncate -s 16M "/srv/iscsi/$target-$disk"
            loop=$(losetup -f --show "/srv/iscsi/$target-$disk")
            at=/sys/kernel/config/target/core/iblock_0/$target-$disk
            mkdir -p "$at"
            echo "udev_path=$loop" >"$at/control"
            echo "$target-$disk" >"$at/wwn/vpd_unit_serial"
            echo 1 >"$at/enable"
        done
    done
    target_with "$IQN" && target_with "$IQN_CHAP" alice "$CHAP_PASSWORD" &&
        target_with "$IQN_MUTUAL" alice "$CHAP_PASSWORD" &&
        proves_itself
    answers 3260
}
