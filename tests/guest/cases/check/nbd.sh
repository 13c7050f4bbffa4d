#!/usr/bin/env bash
# The conformance kit on nbd, nbd-server being the server.
chapter "flexvol check: nbd"
modprobe nbd nbds_max=2
says "guest: flexvol check: nbd-server serves" '' quietly once start_nbd
truncate -s 64M /srv/nbd/web
install_driver nbd '{}'
both_hold nbd --volume "$(small_pv nbd '"server":"127.0.0.1","export":"web"')" "${SERVED[@]}"
