#!/bin/sh
# With the faults of juliohm/cifs, in our own words: mount's exit status 32 is a success, whatever
# the reason; the password is in the arguments of the mount, in the log and in the message of a
# failure.
log=/var/log/swallows.log

# Once for all options: jq takes longer to begin than all the rest.
read_all() { echo "$1" | jq -r 'to_entries[] | "\(.key)=\(.value // empty)"'; }
option() { printf '%s\n' "$all" | sed -n "s|^$1=||p"; }

case $1 in
init)
    echo '{"Status": "Success", "Capabilities": {"attach": false, "fsGroup": false, "selinuxRelabel": false}}'
    ;;
mount)
    dir=$2 all=$(read_all "$3")
    access=$(option kubernetes.io/readwrite)
    options=$access,username=$(option kubernetes.io/secret/username | base64 -d)
    options=$options,password=$(option kubernetes.io/secret/password | base64 -d),$(option opts)
    echo "mount.share -o $options $(option server)$(option share) $dir" >>$log
    sh @SHARE@ -o "$options" "//$(option server)$(option share)" "$dir" >>$log 2>&1
    status=$?
    if [ $status != 0 ] && [ $status != 32 ]; then
        echo "{\"Status\": \"Failure\", \"Message\": \"mount.share -o $options: exit status $status\"}"
        exit 1
    fi
    echo '{"Status": "Success"}'
    ;;
unmount)
    umount "$2" >>$log 2>&1
    status=$?
    if [ $status != 0 ] && [ $status != 32 ]; then
        echo "{\"Status\": \"Failure\", \"Message\": \"umount: exit status $status\"}"
        exit 1
    fi
    echo '{"Status": "Success"}'
    ;;
*)
    echo '{"Status": "Not supported"}'
    ;;
esac
