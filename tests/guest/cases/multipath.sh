#!/usr/bin/env bash
# iscsi by two ways, with multipathd's device above them, on a node with udev: it tells multipathd
# of disks, and looks into each device that changed.
chapter "multipath"
LIMIT=60 says "guest: multipath: LIO serves" '' quietly once start_iscsi
name_server way-1.test 127.0.7.11
name_server way-2.test 127.0.7.12
vendor=hasty
install_driver iscsi '{"attach":true,"deadlines":{"unmount":15}}'

start_multipath() {
    modprobe -a dm_multipath dm_service_time
    printf 'defaults {\n find_multipaths no\n}\n' >/etc/multipath.conf
    /lib/systemd/systemd-udevd --daemon
    iscsid
    multipathd
    until [[ $(</proc/net/unix) == *linux/storage/multipathd* ]]; do sleep 0.1; done
}
# The device that the volume is mounted from.
above() {
    awk -v at="$(staged iscsi)" '$5 == at {for (i = 7; i < NF; i++) if ($i == "-") print $(i + 2)}' /proc/self/mountinfo
}
# What is left of it all.
ways() {
    ls /sys/class/iscsi_session
    dmsetup ls --target multipath | finds grep -v '^No devices'
}
# looked_into DEVICE SECONDS COMMAND...: while somebody has it open.
looked_into() {
    local device=$1 seconds=$2
    shift 2
    { sleep "$seconds"; } <"$device" &
    "$@"
}

says "guest: multipathd runs" '' quietly start_multipath
both="\"targetPortal\":\"way-1.test\",\"portals\":\"way-2.test\",\"iqn\":\"$IQN\",\"lun\":\"1\""
both+=',"connectTimeout":"1","timeout":"3"'
size=16
for round in 1 2; do
    says "guest: multipath $round: mounted for the node" "$ok" stage iscsi "$both"
    says "guest: multipath $round: from the device above two disks" '/dev/@(dm-|mapper/)*' above
    device=$last
    says "guest: multipath $round: written" '' write "$(staged iscsi)/data" "round $round"
    if [[ $round -eq 1 ]]; then
        drop_server way-1.test
        says "guest: multipath: one way is silent" '' \
            sh -c "echo more >'$(staged iscsi)/more' && sync -f '$(staged iscsi)/more'"
        heal_server way-1.test
    fi
    larger=$((size + 32))
    truncate -s "${larger}M" /srv/iscsi/web-disk1
    losetup -c "$(losetup -j /srv/iscsi/web-disk1 | cut -d: -f1)"
    says "guest: multipath $round: grows" "$ok" in_the_end grow iscsi "$both" "$((size << 20))" "$((larger << 20))"
    says "guest: multipath $round: with its file system" $((larger - 16)) mebibytes "$(staged iscsi)"
    size=$larger
    says "guest: multipath $round: let go while somebody looks into it" "$ok" looked_into "$device" 2 unstage iscsi
    says "guest: multipath $round: nothing is left" '' ways
done
multipathd shutdown >/dev/null
udevadm control --exit
pkill -x iscsid
vendor=example
