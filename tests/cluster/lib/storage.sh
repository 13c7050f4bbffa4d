#!/usr/bin/env bash
# A storage on the network, and the FlexVolume driver that attaches its disks. Sourced by chapters.
# shellcheck disable=SC2153 # of lib/cluster.sh
readonly STORAGE=$CLUSTER/storage STORAGE_AT=$WORLD:8081

# storage_begins: it serves, beside the API server.
storage_begins() {
    mkdir -p -- "$STORAGE/www/cgi-bin"
    cp -- "${here:?}/storage/server" "$STORAGE/www/cgi-bin/storage"
    # shellcheck disable=SC2016 # in the world
    on world env STORAGE="$STORAGE" bash -c '
        setsid busybox httpd -f -p "$0" -h "$STORAGE/www" </dev/null >/dev/null 2>&1 &
        echo "$!" >/run/storage.pid' "$STORAGE_AT"
    eventually 10 on world curl --silent "http://$STORAGE_AT"
}
# storage_ends: with all that it has.
storage_ends() {
    # shellcheck disable=SC2016 # in the world
    on world bash -c 'kill "$(</run/storage.pid)"'
    free_loops "$STORAGE/"
    rm -r -- "$STORAGE"
}

# storage_driver: prints the driver.
storage_driver() { sed "s/STORAGE\//$STORAGE_AT\//" "$here/storage/disk"; }

# storage_attached: which disks are attached, and have a device.
storage_attached() {
    find "$STORAGE" -name '*.node'
    losetup --noheadings --raw --output BACK-FILE | finds grep -F "$STORAGE/"
}
