#!/usr/bin/env bash
# An export mounted and unmounted thousands of times.
chapter "cycles: nfs"
LIMIT=120 says "guest: cycles: knfsd serves" '' quietly once start_nfs
endurance shared nfs '"server":"127.0.0.1","path":"/srv/nfs"'
