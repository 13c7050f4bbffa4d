#!/usr/bin/env bash
# cifs: the kernel's client against Samba, without mount.cifs.
chapter "cifs"
LIMIT=60 says "guest: smbd serves" '' quietly once start_smb
name_server smb.test 127.0.2.1
name_server dead-smb.test 127.0.2.9
drop_server dead-smb.test
install_driver cifs '{}'
says "guest: no mount.cifs" '' finds sh -c 'command -v mount.cifs mount.smb3'

share() {
    printf '"source":"//%s/%s","connectTimeout":"1"' "$1" "$2"
}
alice=$(secret username alice),$(secret password "$SMB_PASSWORD")
options=$(share smb.test share),$alice

watch_processes "$SMB_PASSWORD"
life "guest: cifs 3.1.1" cifs "$options,\"version\":\"3.1.1\"" /srv/smb
unwatch
says "guest: cifs: nothing of the password anywhere" '' betrayed
canary "guest: cifs" cifs "$(share smb.test share),$(secret username alice)" \
    "$(share smb.test none),$(secret username alice)" password "$SMB_PASSWORD"
watch_processes "$SMB_PASSWORD"
sh -c 'sleep 0.5; :' leaked "${SMB_PASSWORD:4:9}"
unwatch
says "guest: cifs: one that leaks a part of it is seen" 'cmdline of *leaked*' betrayed
printf 'user:%s' "$SMB_PASSWORD" | base64 >/var/log/leaked
says "guest: cifs: a file that has it in base64 is seen" /var/log/leaked left_in_files
rm /var/log/leaked

says "guest: cifs 2.1: mount" "$ok" set_up one cifs "$options,\"version\":\"2.1\""
says "guest: cifs 2.1: is what is mounted" '*vers=2.1,*' grep -F "$(target one cifs)" /proc/self/mounts
says "guest: cifs 2.1: write" '' in_volume one cifs write data2 data
says "guest: cifs 2.1: unmount" "$ok" tear_down one cifs

says "guest: cifs: with the capabilities of SECURITY.md" '' least shared cifs "$options"
zoe=$(secret username zoe),$(secret password "$SMB_UTF8")
says "guest: cifs: a password in UTF-8, with a space at its end" "$ok" set_up one cifs "$(share smb.test share),$zoe"
says "guest: cifs: serves" '?*' in_volume one cifs ls
says "guest: cifs: the newest dialect is taken" '*vers=3.1.1,*' grep -F "$(target one cifs)" /proc/self/mounts
says "guest: cifs: unmounts" "$ok" tear_down one cifs

says "guest: cifs: a share with a space and a dollar" "$ok" set_up one cifs "$(share smb.test 'odd $share'),$alice"
says "guest: cifs: is read" odd in_volume one cifs cat data
says "guest: cifs: and unmounted" "$ok" tear_down one cifs

says "guest: cifs: server and share" "$ok" set_up one cifs "\"server\":\"smb.test\",\"share\":\"share\",$alice"
says "guest: cifs: unmounted, too" "$ok" tear_down one cifs

says "guest: cifs: owners and modes" "$ok" \
    set_up one cifs "$options,\"uid\":\"1234\",\"gid\":\"2345\",\"fileMode\":\"0640\",\"dirMode\":\"0750\""
says "guest: cifs: as asked" '1234 2345 750' stat -c '%u %g %a' "$(target one cifs)"
says "guest: cifs: for files too" '1234 2345 640' stat -c '%u %g %a' "$(target one cifs)/data"
says "guest: cifs: unmounted as well" "$ok" tear_down one cifs
says "guest: cifs: the pod's group" "$ok" set_up one cifs "$options,\"kubernetes.io/mounterArgs.FsGroup\":\"4321\""
says "guest: cifs: owns it" 4321 stat -c %g "$(target one cifs)"
says "guest: cifs: and goes" "$ok" tear_down one cifs

says "guest: cifs: without a user" "$ok" set_up one cifs "$(share smb.test guest),\"guest\":\"true\""
says "guest: cifs: without a user, write" '' in_volume one cifs write data anybody
says "guest: cifs: without a user, the server has it" anybody cat /srv/smb-guest/data
says "guest: cifs: without a user, unmount" "$ok" tear_down one cifs

wrong=$(secret username alice),$(secret password 'wrong,one')
says "guest: cifs: a wrong password" '*"Failure"*password*' set_up one cifs "$(share smb.test share),$wrong"
says "guest: cifs: is not told" '' never_said wrong,one
says "guest: cifs: no such share" '*"Failure"*nosuch*' set_up one cifs "$(share smb.test nosuch),$alice"
says "guest: cifs: no guest there" '*"Failure"*' set_up one cifs "$(share smb.test share),\"guest\":\"true\""
says "guest: cifs: nobody listens" '*"Failure"*smb.test*' set_up one cifs "$options,\"port\":\"9\""
says "guest: cifs: a silent server" '*"Failure"*dead-smb.test*' set_up one cifs "$(share dead-smb.test share),$alice"
says "guest: cifs: a name nobody knows" '*"Failure"*nowhere.test*' set_up one cifs "$(share nowhere.test share),$alice"
says "guest: cifs: nothing of a failure is left" '' mounted_types
