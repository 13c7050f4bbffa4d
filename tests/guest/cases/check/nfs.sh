#!/usr/bin/env bash
# The conformance kit on nfs, knfsd being the server.
chapter "flexvol check: nfs"
LIMIT=60 says "guest: flexvol check: knfsd serves" '' quietly once start_nfs
install_driver nfs '{}'
holds nfs --options '{"server":"127.0.0.1","path":"/srv/nfs"}' "${SERVED[@]}"
