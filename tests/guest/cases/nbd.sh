#!/usr/bin/env bash
# nbd: disk images of the node, and nbd-server, by the kernel's client; neither qemu-nbd nor
# nbd-client is run.
chapter "nbd"
mkdir -p /tmp/images
name_server nbd.test 127.0.6.1
name_server nbd-dead.test 127.0.6.9
drop_server nbd-dead.test
install_driver nbd '{"policy":{"imageRoots":["/tmp/images"]}}'

web='"server":"nbd.test","export":"web","connectTimeout":"1","timeout":"3"'
says "guest: nbd: without the module" '*"Failure"*modprobe nbd*' \
    set_up one nbd '"file":"a.img","imageFormat":"raw","size":"16Mi"'
modprobe nbd nbds_max=2
says "guest: nbd-server serves" '' quietly once start_nbd
says "guest: nbd: with the capabilities of SECURITY.md" '' least shared nbd "$web"
pods_life "guest: nbd by pods: a server" nbd "$web" nbds
reader_first "guest: nbd by pods" nbd "$web" nbds '*mounted read-only for another pod*other nodes*end that pod first*'
pods_life "guest: nbd by pods: a qcow2 image" nbd '"file":"b/p.qcow2","size":"16Mi"' nbds
reader_first "guest: nbd by pods: a qcow2 image" nbd '"file":"b/p.qcow2","size":"16Mi"' nbds
says "guest: nbd by pods: killed anywhere" '' killed shared nbd '"file":"NEW.qcow2","size":"16Mi"' nbds 0.05 0.7
says "guest: nbd by pods: to be dropped" "$ok" set_up one nbd "$web"
says "guest: nbd by pods: dropped: written" '' in_volume one nbd write data3 x
drop_server nbd.test
LIMIT=30 says "guest: nbd by pods: dropped: the pod leaves" "$ok" in_the_end tear_down one nbd
says "guest: nbd by pods: dropped: nothing is left" '' nbds
heal_server nbd.test
says "guest: nbd by pods: healed: the old connection has nothing to say" '' \
    sh -c 'while grep " [0-9A-F]*:2A39 04 " /proc/net/tcp; do sleep 0.2; done'
changed_life "guest: nbd changed" nbd "$web" nbds
# From here on it attaches.
device_life "guest: nbd: a server" nbd "$web" nbds
device_life "guest: nbd: a qcow2 image" nbd '"file":"b/a.qcow2","size":"16Mi"' nbds
says "guest: nbd: killed anywhere" '' killed staged nbd '"file":"NEW.qcow2","size":"16Mi"' nbds 0.05 0.3 0.7

for options in '"file":"c.img","imageFormat":"raw"' '"file":"c.qcow2"'; do
    says "guest: nbd: staged to grow" "$ok" stage nbd "$options"',"size":"16Mi"'
    says "guest: nbd: before" 0 mebibytes "$(staged nbd)"
    says "guest: nbd: grows" "$ok" grow nbd "$options" 16777216 50331648
    says "guest: nbd: after" 32 mebibytes "$(staged nbd)"
    says "guest: nbd: grows again" "$ok" grow nbd "$options" 16777216 50331648
    says "guest: nbd: written to the end" '' sh -c "head -c 30M /dev/zero >$(staged nbd)/f && sync -f $(staged nbd)/f"
    says "guest: nbd: grown, let go" "$ok" unstage nbd
done
says "guest: nbd: a server's, staged" "$ok" stage nbd "$web"
says "guest: nbd: another export under the volume's name" \
    '*"Failure"*another volume*nbd://nbd.test:10809/web, but these options name nbd://nbd.test:10809/frozen*' set_up \
    two nbd "${web/web/frozen}"
says "guest: nbd: is not shown" "$ok" tear_down two nbd
says "guest: nbd: the server has to grow first" '*"Failure"*nbd.test*web has 16Mi: let its server give it 48Mi*' \
    grow nbd "$web" 16777216 50331648
truncate -s 48M /srv/nbd/web
says "guest: nbd: its connection stays as it was" '*"Failure"*unmount the volume everywhere*' \
    grow nbd "$web" 16777216 50331648
says "guest: nbd: its data" "of guest: nbd: a server" cat "$(staged nbd)/data"
says "guest: nbd: a server's, let go" "$ok" unstage nbd
says "guest: nbd: a server's, staged again" "$ok" stage nbd "$web"
says "guest: nbd: now it grows" "$ok" grow nbd "$web" 16777216 50331648
says "guest: nbd: all of it" 32 mebibytes "$(staged nbd)"
says "guest: nbd: and is let go" "$ok" unstage nbd

says "guest: nbd: no such export" '*"Failure"*nbd.test*no export*nowhere*' stage nbd "${web/web/nowhere}"
says "guest: nbd: an export for reading" '*"Failure"*' stage nbd "${web/web/frozen}"
says "guest: nbd: nobody listens" '*"Failure"*nbd.test*refuses*' stage nbd "$web,\"port\":\"9\""
says "guest: nbd: a silent server" '*"Failure"*nbd-dead.test*does not answer*' stage nbd "${web/nbd.test/nbd-dead.test}"
busybox nc -l -p 7777 </etc/protocols >/dev/null &
disown
sleep 0.3
says "guest: nbd: another protocol" '*"Failure"*fixed-newstyle*' stage nbd "$web,\"port\":\"7777\""
says "guest: nbd: no image" '*"Failure"*option size*' stage nbd '"file":"none.img","imageFormat":"raw"'
says "guest: nbd: nothing is left of them" '' nbds

truncate -s 16M /tmp/images/used.img
losetup /dev/loop7 /tmp/images/used.img
says "guest: nbd: an image with a loop device" '*"Failure"*in use as /dev/loop7*' \
    stage nbd '"file":"used.img","imageFormat":"raw"'
losetup -d /dev/loop7
flock /tmp/images/used.img sleep 60 &
disown
says "guest: nbd: an image with a lock" '*"Failure"*locked by who uses it*' \
    stage nbd '"file":"used.img","imageFormat":"raw"'
pkill -x sleep
says "guest: nbd: an image without" '*"Failure"*holds no file system*' \
    stage nbd '"file":"used.img","imageFormat":"raw","format":"never"'
says "guest: nbd: in use" "$ok" stage nbd '"file":"b/a.qcow2"'
says "guest: nbd: an image that somebody serves" '*Failed to get*lock*' \
    qemu-nbd -k /run/other -f qcow2 /tmp/images/b/a.qcow2
says "guest: nbd: no longer in use" "$ok" unstage nbd
says "guest: nbd: an image that is none" '*"Failure"*no qcow2 image*' stage nbd '"file":"used.img"'

# What was never written is not read: that would take this guest an hour.
truncate -s 200G /srv/nbd/large
qemu-nbd --fork --persistent --shared=4 -f raw -b 127.0.6.1 -p 10810 -x large /srv/nbd/large
large="${web/'"web"'/'"large"'},\"port\":\"10810\",\"mkfsOptions\":\"-O ^has_journal\""
says "guest: nbd: 200 GiB of nothing, of a server" "$ok" stage nbd "$large"
says "guest: nbd: 200 GiB, let go" "$ok" unstage nbd
truncate -s 0 /srv/nbd/large
truncate -s 200G /srv/nbd/large
printf data | dd of=/srv/nbd/large bs=1M seek=77777 conv=notrunc status=none
says "guest: nbd: 200 GiB with four bytes" '*"Failure"*holds data at offset 81555095552*' stage nbd "$large"
pkill -x qemu-nbd
qemu-img create -q -f qcow2 /tmp/images/large.qcow2 200G
large='"file":"large.qcow2","mkfsOptions":"-O ^has_journal"'
says "guest: nbd: 200 GiB of nothing, in an image" "$ok" stage nbd "$large"
says "guest: nbd: 200 GiB of an image, let go" "$ok" unstage nbd
rm -f /tmp/images/large.qcow2 /srv/nbd/large

# An admin has the same export by hand: what is on it tells.
mkdir -p /run/lock
qemu-nbd -c /dev/nbd1 -f raw nbd://127.0.6.1/web
mkdir -p /tmp/byhand
says "guest: nbd: mounted by hand" '' mount /dev/nbd1 /tmp/byhand
says "guest: nbd: it is not mounted twice" '*"Failure"*/dev/nbd1*same UUID*' stage nbd "$web"
says "guest: nbd: another export is" "$ok" stage nbd '"file":"b/a.qcow2"'
says "guest: nbd: another export is let go" "$ok" unstage nbd
umount /tmp/byhand
says "guest: nbd: connected by hand, and used by nobody" "$ok" stage nbd "$web"
says "guest: nbd: let go beside it" "$ok" unstage nbd
qemu-nbd -d /dev/nbd1 >/dev/null

# A daemon is killed, and what hung on it is taken away.
says "guest: nbd: to be killed" "$ok" stage nbd '"file":"b/a.qcow2"'
pkill -KILL -x qemu-storage-da
says "guest: nbd: killed: unstaged" "$ok" unstage nbd
says "guest: nbd: killed: nothing is left" '' nbds
says "guest: nbd: killed: staged again" "$ok" stage nbd '"file":"b/a.qcow2"'
says "guest: nbd: killed: the data" "of guest: nbd: a qcow2 image" cat "$(staged nbd)/data"
says "guest: nbd: killed: and let go" "$ok" unstage nbd

# A server falls silent while a pod writes.
says "guest: nbd: to be dropped" "$ok" stage nbd "$web"
says "guest: nbd: dropped: a pod" "$ok" set_up one nbd "$web"
says "guest: nbd: dropped: written" '' in_volume one nbd write data3 x
drop_server nbd.test
LIMIT=20 says "guest: nbd: dropped: the pod leaves" "$ok" tear_down one nbd
LIMIT=30 says "guest: nbd: dropped: unstaged" "$ok" unstage nbd
says "guest: nbd: dropped: nothing is left" '' nbds
LIMIT=20 says "guest: nbd: dropped: another mount names it" '*"Failure"*nbd.test*does not answer*' stage nbd "$web"
heal_server nbd.test
says "guest: nbd: healed: staged" "$ok" stage nbd "$web"
says "guest: nbd: healed: the data" "of guest: nbd: a server" cat "$(staged nbd)/data"
says "guest: nbd: healed: let go" "$ok" unstage nbd
# What the kernel still sends of a connection that has ended (FIN_WAIT1) would be written over what
# is there now.
says "guest: nbd: healed: the old connection has nothing to say" '' \
    sh -c 'while grep " [0-9A-F]*:2A39 04 " /proc/net/tcp; do sleep 0.2; done'
says "guest: nbd: healed: staged once more" "$ok" stage nbd "$web"
says "guest: nbd: healed: let go once more" "$ok" unstage nbd
says "guest: nbd: no trace" '' no_trace qemu-storage
