#!/usr/bin/env bash
# iscsi: the kernel's target (LIO), the kernel's client, iscsid.
chapter "iscsi"
name_server iscsi.test 127.0.7.1
name_server iscsi-2.test 127.0.7.2
name_server iscsi-dead.test 127.0.7.9
drop_server iscsi-dead.test
vendor=hasty
install_driver iscsi '{"deadlines":{"unmount":15}}'
# Disks and sessions.
iscsis() {
    ls /sys/class/iscsi_session 2>/dev/null
    finds ls -d /sys/block/sd* 2>/dev/null
}

# What the node's own database holds.
records() {
    finds find /etc/iscsi/nodes /etc/iscsi/send_targets /etc/iscsi/ifaces -type f 2>/dev/null
}

web="\"targetPortal\":\"iscsi.test\",\"iqn\":\"$IQN\",\"connectTimeout\":\"1\",\"timeout\":\"3\""
second="${web/iscsi.test/iscsi-2.test},\"lun\":\"1\""
chap="\"targetPortal\":\"iscsi.test:3260\",\"iqn\":\"$IQN_CHAP\",\"chapAuthSession\":\"true\",\"timeout\":\"3\""
user=$(secret node.session.auth.username alice)
password=$(secret node.session.auth.password "$CHAP_PASSWORD")
LIMIT=60 says "guest: LIO serves" '' quietly once start_iscsi
says "guest: iscsi: without iscsid" '*"Failure"*systemctl enable --now iscsid*' set_up one iscsi "$web"
iscsid
says "guest: iscsi: with the capabilities of SECURITY.md" '' least shared iscsi "$web"
pods_life "guest: iscsi by pods" iscsi "$web" iscsis
reader_first "guest: iscsi by pods" iscsi "$web" iscsis \
    '*mounted read-only for another pod*other nodes*end that pod first*'
says "guest: iscsi by pods: killed anywhere" '' killed shared iscsi "$web" iscsis 0.5
is_lost "guest: iscsi lost" iscsi "$web" iscsis
changed_life "guest: iscsi changed" iscsi "$web" iscsis
# From here on it attaches.
device_life "guest: iscsi" iscsi "$web" iscsis
equal_names "guest: iscsi" iscsi "$web" "$second" "$IQN:1"
says "guest: iscsi: killed anywhere" '' killed staged iscsi "$web" iscsis 0.1 0.5 1.2
says "guest: iscsi: no record" '' records

says "guest: iscsi: staged to grow" "$ok" stage iscsi "$web"
says "guest: iscsi: before" 0 mebibytes "$(staged iscsi)"
says "guest: iscsi: the target has to grow first" '*"Failure"*web:0 has 16Mi: let its server give it 48Mi*' \
    grow iscsi "$web" 16777216 50331648
says "guest: iscsi: the target grows" '' \
    sh -c 'truncate -s 48M /srv/iscsi/web-disk0 && losetup -c "$(losetup -j /srv/iscsi/web-disk0 | cut -d: -f1)"'
says "guest: iscsi: grows" "$ok" grow iscsi "$web" 16777216 50331648
says "guest: iscsi: after" 32 mebibytes "$(staged iscsi)"
says "guest: iscsi: another server's target of this name" '*"Failure"*not from 127.0.9.9:3260*' \
    set_up two iscsi "${web/iscsi.test/127.0.9.9}"
says "guest: iscsi: it is not shown" "$ok" tear_down two iscsi

# Two units of one target: two volumes, and one session or two.
says "guest: iscsi: only the volume's own unit" 1 sh -c 'ls -d /sys/block/sd* | wc -l'
says "guest: iscsi: another unit, by CHAP's target without a Secret" '*"Failure"*needs a Secret*' \
    set_up chap iscsi "$chap"
says "guest: iscsi: a wrong password" '*"Failure"*correct the Secret*' \
    set_up chap iscsi "$chap,$user,$(secret node.session.auth.password wrong-wrong-wrong)"
says "guest: iscsi: it says no password" '' never_said wrong-wrong
says "guest: iscsi: CHAP" "$ok" set_up chap iscsi "$chap,$user,$password"
says "guest: iscsi: CHAP, a wrong password while it is open" '*"Failure"*by another Secret*' \
    set_up two iscsi "$chap,$user,$(secret node.session.auth.password wrong-wrong-wrong)"
says "guest: iscsi: CHAP, for a second pod" "$ok" set_up two iscsi "$chap,$user,$password"
says "guest: iscsi: CHAP, written" '' in_volume chap iscsi write data chap
says "guest: iscsi: CHAP, read" chap in_volume two iscsi cat data
printf '%s' "$CHAP_PASSWORD" >/srv/iscsi/password
says "guest: iscsi: the password is nowhere" '' \
    finds sh -c 'grep -rlFf /srv/iscsi/password /run/flexvol /etc/iscsi /var/lib/iscsi /proc/[0-9]*/cmdline \
        /proc/mounts 2>/dev/null'
says "guest: iscsi: the admin sees our sessions" '*127.0.7.1:3260*' iscsiadm -m session
says "guest: iscsi: CHAP, unmount" "$ok" tear_down chap iscsi
says "guest: iscsi: CHAP, still there" chap in_volume two iscsi cat data
says "guest: iscsi: CHAP, unmount the other" "$ok" tear_down two iscsi
says "guest: iscsi: the other target's session stays" 2 sh -c 'ls -d /sys/class/iscsi_session/* /sys/block/sd* | wc -l'
says "guest: iscsi: let go" "$ok" unstage iscsi
says "guest: iscsi: nothing is left" '' iscsis
canary "guest: iscsi" iscsi \
    "$chap,$user" "${chap/$IQN_CHAP/iqn.2020-01.test:none},$user" node.session.auth.password "$CHAP_PASSWORD"

# Both sides have a password.
mutual="${chap/$IQN_CHAP/$IQN_MUTUAL},$user,$password"
their_user=$(secret node.session.auth.username_in bob)
says "guest: iscsi: a target that proves itself" "$ok" \
    set_up chap iscsi "$mutual,$their_user,$(secret node.session.auth.password_in "$TARGET_PASSWORD")"
says "guest: iscsi: both have proved who they are" 'alice bob' \
    sh -c 'cat /sys/class/iscsi_session/*/username /sys/class/iscsi_session/*/username_in | xargs'
printf '%s' "$TARGET_PASSWORD" >/srv/iscsi/password
says "guest: iscsi: its password is nowhere" '' \
    finds sh -c 'grep -rlFf /srv/iscsi/password /run/flexvol /etc/iscsi /var/lib/iscsi /proc/[0-9]*/cmdline \
        /proc/mounts 2>/dev/null'
says "guest: iscsi: it is let go" "$ok" tear_down chap iscsi
says "guest: iscsi: one that has another password is none" '*"Failure"*username_in*' \
    set_up chap iscsi "$mutual,$their_user,$(secret node.session.auth.password_in another-password)"
says "guest: iscsi: one that cannot prove itself" '*"Failure"*' \
    set_up chap iscsi "$chap,$user,$password,$their_user,$(secret node.session.auth.password_in "$TARGET_PASSWORD")"
says "guest: iscsi: nothing is left of those" '' iscsis

# Who asks for targets has to say who he is, and so has the portal.
asked="$web,\"discovery\":\"true\",\"chapAuthDiscovery\":\"true\",$(secret discovery.sendtargets.auth.username alice)"
their_user=$(secret discovery.sendtargets.auth.username_in bob)
their_user+=,$(secret discovery.sendtargets.auth.password_in "$TARGET_PASSWORD")
asks=$(secret discovery.sendtargets.auth.password "$CHAP_PASSWORD")
says "guest: iscsi: discovery has a password" '' guarded 1
says "guest: iscsi: discovery without one" '*"Failure"*' stage iscsi "$web,\"discovery\":\"true\""
says "guest: iscsi: discovery with a wrong one" '*"Failure"*' \
    set_up one iscsi "$asked,$(secret discovery.sendtargets.auth.password wrong-wrong-wrong),$their_user"
says "guest: iscsi: discovery at a portal that is another" '*"Failure"*' \
    set_up one iscsi "$asked,$asks,${their_user/$(printf %s bob | base64)/$(printf %s eve | base64)}"
says "guest: iscsi: nothing is left of these, either" '' iscsis
says "guest: iscsi: discovery with it" "$ok" set_up one iscsi "$asked,$asks,$their_user"
says "guest: iscsi: what was discovered, let go" "$ok" tear_down one iscsi
says "guest: iscsi: discovery has none any more" '' guarded 0

# A session of the admin's.
says "guest: iscsi: the admin logs in" '' \
    quietly sh -c "iscsiadm -m node -T $IQN -p 127.0.7.1:3260 -I default -o new &&
        iscsiadm -m node -T $IQN -p 127.0.7.1:3260 -o update -n node.session.scan -v manual &&
        iscsiadm -m node -T $IQN -p 127.0.7.1:3260 --login"
says "guest: iscsi: the admin's session is used" "$ok" stage iscsi "$web"
says "guest: iscsi: it is the only one" 1 sh -c 'ls /sys/class/iscsi_session | wc -l'
says "guest: iscsi: let go of it" "$ok" unstage iscsi
says "guest: iscsi: it stays, without the unit" 'session*' iscsis
says "guest: iscsi: another unit of it" "$ok" stage iscsi "${second/iscsi-2.test/iscsi.test}"
says "guest: iscsi: it is let go" "$ok" unstage iscsi
says "guest: iscsi: the admin's record stays" '/etc/iscsi/nodes/*' records
says "guest: iscsi: the admin logs out" '' \
    quietly sh -c "iscsiadm -m node -T $IQN -p 127.0.7.1:3260 --logout && iscsiadm -m node -o delete -T $IQN"

# Several ways.
both="${web/iscsi.test/iscsi-dead.test},\"portals\":\"[\\\"iscsi.test\\\",\\\"iscsi-2.test:3260\\\"]\""
says "guest: iscsi: two portals and a dead one" "$ok" stage iscsi "$both"
says "guest: iscsi: two sessions" 2 sh -c 'ls /sys/class/iscsi_session | wc -l'
says "guest: iscsi: two portals, let go" "$ok" unstage iscsi
says "guest: iscsi: both are ended" '' iscsis
says "guest: iscsi: discovery" "$ok" stage iscsi "$web,\"discovery\":\"true\",\"initiatorName\":\"iqn.2020-01.test:us\""
says "guest: iscsi: our own name" 'iqn.2020-01.test:us' sh -c 'cat /sys/class/iscsi_session/*/initiatorname | sort -u'
says "guest: iscsi: discovered, let go" "$ok" unstage iscsi

says "guest: iscsi: no such unit" '*"Failure"*no unit 7*' stage iscsi "$web,\"lun\":\"7\""
says "guest: iscsi: no such target" '*"Failure"*check its name*' stage iscsi "${web/:web/:none}"
says "guest: iscsi: nobody listens" '*"Failure"*iscsi.test:9*refuses*' stage iscsi "${web/iscsi.test/iscsi.test:9}"
LIMIT=20 says "guest: iscsi: a silent portal" '*"Failure"*iscsi-dead.test*does not answer*' \
    stage iscsi "${web/iscsi.test/iscsi-dead.test}"
says "guest: iscsi: no such interface" '*"Failure"*no iSCSI interface*' stage iscsi "$web,\"iscsiInterface\":\"eth7\""
says "guest: iscsi: nothing is left of them" '' iscsis

# The target falls silent.
says "guest: iscsi: to be dropped" "$ok" stage iscsi "$web"
says "guest: iscsi: dropped: a pod" "$ok" set_up one iscsi "$web"
says "guest: iscsi: dropped: written" '' in_volume one iscsi write data3 x
drop_server iscsi.test
LIMIT=30 says "guest: iscsi: dropped: the pod leaves" "$ok" tear_down one iscsi
LIMIT=60 says "guest: iscsi: dropped: unstaged" "$ok" in_the_end unstage iscsi
says "guest: iscsi: dropped: nothing is left" '' iscsis
heal_server iscsi.test
says "guest: iscsi: healed" "$ok" stage iscsi "$web"
says "guest: iscsi: healed: the data" "of guest: iscsi" cat "$(staged iscsi)/data"
says "guest: iscsi: healed: let go" "$ok" unstage iscsi
says "guest: iscsi: no trace" '' no_trace iscsiadm
pkill -x iscsid
vendor=example
