#!/usr/bin/env bash
# Drivers in shell, made for one case. Sourced by the chapters truth and events.

# scripted PLACE VENDOR/DRIVER: installs what is on standard input on a node, or where the
# controller manager looks (world).
scripted() {
    # shellcheck disable=SC2153 # of lib/case.sh
    local place=$1 plugins=$PLUGINS
    [[ $place != world ]] || plugins=$CONTROLLERS
    # shellcheck disable=SC2016 # for that shell
    on "$place" bash -c 'mkdir -p "$0" && cat >"$0/.new" && chmod 755 "$0/.new" && mv "$0/.new" "$0/$1"' \
        "$plugins/${2//\//\~}" "${2##*/}"
}

# unscripted PLACE VENDOR: removes all drivers of that vendor.
unscripted() {
    local plugins=$PLUGINS
    [[ $1 != world ]] || plugins=$CONTROLLERS
    on "$1" find "$plugins" -mindepth 1 -maxdepth 1 -name "$2~*" -exec rm -r -- {} +
}
