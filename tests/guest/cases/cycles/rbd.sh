#!/usr/bin/env bash
# An image mapped and unmapped thousands of times.
chapter "cycles: rbd"
says "guest: cycles: the cluster is reached" '' quietly once reach_ceph
endurance shared rbd \
    "\"monitors\":\"$CEPH\",\"user\":\"user\",\"image\":\"plain\",\"keyring\":\"/etc/ceph/user.keyring\""
