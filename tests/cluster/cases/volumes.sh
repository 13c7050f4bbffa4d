#!/usr/bin/env bash
# shellcheck disable=SC2034 # pod uses what is set
# Every driver that this kernel can serve, as pods use it. Sourced by tests/cluster/play.

namespace volumes >/dev/null
says 'volumes: drivers are installed' '*tmpfs installed*' on node-1 flexvol install tmpfs image --plugin-dir "$PLUGINS"

driver=tmpfs
says 'volumes: tmpfs: pods are made' '*created*' apply < <(
    script='id; stat -c %g:%a /v; echo data >/v/file && cat /v/file' spec='securityContext: {fsGroup: 2000, runAsUser: 1000}' \
        pod tmpfs-group 'flexVolume: {driver: flexvol/tmpfs, options: {size: 16Mi}}'
    pod tmpfs-rest 'flexVolume: {driver: flexvol/tmpfs, options: {size: 16Mi}}'
)
says 'volumes: tmpfs: fsGroup' $'uid=1000*\n2000:2777\ndata' said_by tmpfs-group
says 'volumes: tmpfs: runs' '' runs tmpfs-rest
says 'volumes: tmpfs: pods go' '' remove pod tmpfs-group tmpfs-rest
says 'volumes: tmpfs: nothing is left' '' clean node-1
