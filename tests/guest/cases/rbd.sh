#!/usr/bin/env bash
# rbd: the kernel's client against a real cluster, without any of Ceph's programs.
chapter "rbd"
once use_images
says "guest: rbd: the cluster is reached" '' quietly once reach_ceph
says "guest: rbd: none of its programs" '' finds sh -c 'command -v rbd rbd-nbd ceph mount.ceph'

watch_processes "$ceph_key"
block_life "guest: rbd" "$(image claimed),$ceph_secret"
says "guest: rbd: mount for a look" "$ok" set_up one rbd "$(image claimed),$ceph_secret"
# Not by a program: whoever looks at processes would see the key there.
shown() {
    [[ $(cat /sys/bus/rbd/devices/*/* 2>/dev/null) != *"$ceph_key"* ]] || echo shown
}
says "guest: rbd: the key is not in /sys" '' shown
says "guest: rbd: it is claimed" '*exclusive*' sh -c 'cat /sys/bus/rbd/devices/*/config_info'
says "guest: rbd: one that is claimed cannot grow" '*"Failure"*unmount it everywhere*' \
    "$PLUGINS/example~rbd/rbd" expandfs "{$(image claimed)}" '' "$(target one rbd)" 33554432 16777216
says "guest: rbd: unmount after a look" "$ok" tear_down one rbd
unwatch
says "guest: rbd: nothing of the key anywhere" '' betrayed
canary "guest: rbd" rbd "$(image plain)" "$(image none)" key "$ceph_key"
says "guest: rbd: with the capabilities of SECURITY.md" '' least shared rbd "$(image plain),$ceph_secret"

# What was never written is not read, where somebody can be asked: that would take this guest many
# minutes.
ln -s ../lib/aside/rbd /usr/bin/rbd
large="$(image large),\"mkfsOptions\":\"-O ^has_journal\",$ceph_secret"
says "guest: rbd: 20 GiB of nothing" "$ok" set_up one rbd "$large"
says "guest: rbd: 20 GiB, unmount" "$ok" tear_down one rbd
says "guest: rbd: 20 GiB: nothing of the key anywhere" '' betrayed
rm /usr/bin/rbd

by_file=$(image claimed)',"keyring":"/etc/ceph/user.keyring"'
plain_by_file="$(image plain)"',"keyring":"/etc/ceph/user.keyring"'
pods_life "guest: rbd by pods" rbd "$plain_by_file" mapped
reader_first "guest: rbd by pods" rbd "$plain_by_file" mapped \
    '*mounted read-only for another pod*other nodes*end that pod first*'
is_lost "guest: rbd lost" rbd "$plain_by_file" mapped
changed_life "guest: rbd changed" rbd "$plain_by_file" mapped
# From here on it attaches.
says "guest: rbd: staged: mountdevice" "$ok" stage rbd "$by_file"
says "guest: rbd: staged: mountdevice again" "$ok" stage rbd "$by_file"
says "guest: rbd: staged: a pod" "$ok" set_up one rbd "$by_file"
says "guest: rbd: staged: it reads" 'of guest: rbd' in_volume one rbd cat data
says "guest: rbd: staged: unmount" "$ok" tear_down one rbd
says "guest: rbd: staged: the device is there" '*claimed*' mapped
says "guest: rbd: staged: unmountdevice" "$ok" unstage rbd
says "guest: rbd: staged: nothing is left" '' mapped
equal_names "guest: rbd" rbd "$by_file" "$plain_by_file" /plain
says "guest: rbd: a keyring elsewhere" '*"Failure"*policy.keyringRoots*' \
    stage rbd "$(image plain)"',"keyring":"/job/ceph/user.keyring"'
says "guest: rbd: a keyring without the user" '*"Failure"*client.else*' \
    stage rbd "${by_file/'"user":"user"'/'"user":"else"'}"
attaches rbd false

says "guest: rbd: the second protocol" "$ok" \
    set_up one rbd "${by_ceph/6789/3300},\"msMode\":\"prefer-crc\",\"image\":\"claimed\",$ceph_secret"
says "guest: rbd: the second protocol, unmount" "$ok" tear_down one rbd
says "guest: rbd: a snapshot is made" 'done' ask_ceph snap claimed monday
monday="$(image claimed)"',"snapshot":"monday"'",$ceph_secret"
says "guest: rbd: a snapshot" "$ok" set_up one rbd "$monday"',"kubernetes.io/readwrite":"ro"'
says "guest: rbd: a snapshot is read" 'of guest: rbd' in_volume one rbd cat data
says "guest: rbd: a snapshot, unmount" "$ok" tear_down one rbd
says "guest: rbd: a snapshot is not written" '*"Failure"*readOnly*' set_up one rbd "$monday"

grown="$(image grown)"',"exclusive":"false"'
grow=("$PLUGINS/example~rbd/rbd" expandfs "{$grown}" '' "$(target one rbd)" 33554432 16777216)
says "guest: rbd: before it grows" "$ok" set_up one rbd "$grown,$ceph_secret"
says "guest: rbd: the image has to grow first" '*"Failure"*rbd resize*' "${grow[@]}"
says "guest: rbd: the image grows" 'done' ask_ceph resize grown 32M
says "guest: rbd: so does the file system" "$ok" "${grow[@]}"
says "guest: rbd: it has grown" grown \
    sh -c "df -m '$(target one rbd)' | awk 'NR == 2 {print (\$2 > 20 ? \"grown\" : \"small\")}'"
says "guest: rbd: after it has grown" "$ok" tear_down one rbd

killed_anywhere "guest: rbd" "$(image claimed),$ceph_secret" 0.05 0.15 0.3

says "guest: rbd: another node has it" '' another_node claimed
says "guest: rbd: it is refused" '*"Failure"*another node*' set_up one rbd "$(image claimed),$ceph_secret"
says "guest: rbd: another node lets go" '' leave_it
says "guest: rbd: and it is not" "$ok" set_up one rbd "$(image claimed),$ceph_secret"
says "guest: rbd: named otherwise it is refused" '*"Failure"*' \
    set_up two rbd "${by_ceph/ceph.test/$CEPH},\"image\":\"claimed\",$ceph_secret"
says "guest: rbd: without a lock, too: mount" "$ok" set_up three rbd "$(image plain),$ceph_secret"
says "guest: rbd: a wrong key while it is open" '*"Failure"*by another Secret*' \
    set_up two rbd "$(image plain),$(secret key "$(<ceph/admin.key)")"
says "guest: rbd: without a lock, too" '*"Failure"*already*' \
    set_up two rbd "${by_ceph/ceph.test/$CEPH},\"image\":\"plain\",$ceph_secret"
says "guest: rbd: the first is unharmed" "$ok" tear_down one rbd
says "guest: rbd: and the third" "$ok" tear_down three rbd
# In the place of Ceph's own program.
cat >/usr/bin/rbd <<'PROGRAM'
#!/bin/sh
echo "$@" >/tmp/rbd-words
echo '{"watchers":[{"address":"10.7.7.7:0/1","client":1,"cookie":1}]}'
PROGRAM
chmod +x /usr/bin/rbd
says "guest: rbd: who watches is named" '*"Failure"*open elsewhere, 10.7.7.7:0/1*' \
    set_up one rbd "$(image plain),$ceph_secret"
says "guest: rbd: the program was not told the key" '*--id user *status*' cat /tmp/rbd-words
says "guest: rbd: not at all" '' finds grep -F "$ceph_key" /tmp/rbd-words
says "guest: rbd: who only reads may" "$ok" \
    set_up one rbd "$(image plain),$ceph_secret"',"kubernetes.io/readwrite":"ro"'
says "guest: rbd: and is let go" "$ok" tear_down one rbd
rm /usr/bin/rbd

says "guest: rbd: no such image" '*"Failure"*rbd/nosuch*no such*' set_up one rbd "$(image nosuch),$ceph_secret"
says "guest: rbd: no such pool" '*"Failure"*none/plain*no such*' \
    set_up one rbd "$(image plain),\"pool\":\"none\",$ceph_secret"
says "guest: rbd: a wrong key" '*"Failure"*refuses user and key*' \
    set_up one rbd "$(image plain),$(secret key "$(<ceph/admin.key)")"
says "guest: rbd: is not told" '' never_said "$(<ceph/admin.key)"
says "guest: rbd: no key at all" '*"Failure"*auth get-key*' set_up one rbd "$(image plain),$(secret key hunter2)"
says "guest: rbd: nobody listens" '*"Failure"*ceph.test:9*refuses*' \
    set_up one rbd "${by_ceph/6789/9},\"image\":\"plain\",$ceph_secret"
says "guest: rbd: a silent monitor" '*"Failure"*dead-ceph.test*' \
    set_up one rbd "${by_ceph/ceph/dead-ceph},\"image\":\"plain\",$ceph_secret"
says "guest: rbd: a name nobody knows" '*"Failure"*nowhere.test*' \
    set_up one rbd "${by_ceph/ceph.test/nowhere.test},\"image\":\"plain\",$ceph_secret"
says "guest: rbd: after a dead one the next is asked" "$ok" \
    set_up one rbd "${by_ceph/ceph.test/dead-ceph.test:1,ceph.test},\"image\":\"plain\",$ceph_secret"
says "guest: rbd: and lets go" "$ok" tear_down one rbd
says "guest: rbd: nothing of a failure is left" '' mapped

hasty rbd
LATE="$(image claimed),$ceph_secret" STAYS=yes falls_silent "guest: rbd dropped" rbd ceph.test \
    "$(image plain),$ceph_secret"
LIMIT=30 says "guest: rbd dropped: nothing is left" '' gone_in_the_end
vendor=example
