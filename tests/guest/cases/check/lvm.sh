#!/usr/bin/env bash
# The conformance kit on lvm, without udev.
chapter "flexvol check: lvm"
LIMIT=60 says "guest: flexvol check: a group" '' quietly once start_lvm
install_driver lvm '{}'
both_hold lvm --options "{$(volume checked),\"size\":\"20Mi\"}" --make-nodes
