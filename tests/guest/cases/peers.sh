#!/usr/bin/env bash
# Volumes of drivers that people have today, taken over without an edit: their own YAML, under their
# own driver's name.
chapter "peers"

# takes_over DRIVER STORE OWNER: OWNER is what stat -c '%u %g %a' says of a file.
takes_over() {
    local driver=$1 store=$2 owner=$3 name=${1//[~.]/-} at
    local base=${driver#*~} file="peers/$4"
    mkdir -p "$PLUGINS/$driver"
    cp flexvol "$PLUGINS/$driver/$base"
    echo '{"policy":{"servers":["*","127.0.0.0/8"]}}' >"$PLUGINS/$driver/.flexvol.json"
    echo taken over >"$store/peer"
    says "guest: $driver: pod up" '' \
        quietly ./flexvol pod up -f "$file" --driver-dir "$PLUGINS" --root "$KUBELET" --retries 0
    at=$(find "$KUBELET/pods" -mindepth 4 -maxdepth 4 -path "*/$driver/*")
    says "guest: $driver: mounted" '?*' grep -F " $at " /proc/self/mountinfo
    says "guest: $driver: read" 'taken over' cat "$at/peer"
    says "guest: $driver: written" '' write "$at/$name" mine
    says "guest: $driver: by the server" mine cat "$store/$name"
    says "guest: $driver: owned" "$owner" stat -c '%u %g %a' "$at/peer"
    says "guest: $driver: pod down" '' quietly ./flexvol pod down -f "$file" --driver-dir "$PLUGINS" --root "$KUBELET"
    says "guest: $driver: nothing is left" '' mounted_types
}

if [[ $(./flexvol explain --profile fstab/cifs 2>&1) == *networkPath* ]]; then
    watch_processes "$SMB_PASSWORD"
    takes_over fstab~cifs /srv/smb '0 0 644' fstab-cifs.yaml
    takes_over juliohm~cifs /srv/smb '333 333 660' juliohm-cifs.yaml
    takes_over microsoft.com~smb /srv/smb '0 0 777' microsoft-smb.yaml
    unwatch
    says "guest: peers: nothing of the password anywhere" '' betrayed
    takes_over k8s~nfs /srv/nfs '0 0 644' k8s-nfs.yaml
else
    skips "guest: peers" "this build has no profiles"
fi
