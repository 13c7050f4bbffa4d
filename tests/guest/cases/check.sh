#!/usr/bin/env bash
# The conformance kit on every driver whose server or device only the guest has.
for driver in nfs cifs nbd iscsi lvm rbd; do play "check/$driver"; done
