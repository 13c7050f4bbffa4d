#!/usr/bin/env bash
# Container images that chapters make. Sourced by them.

# import NAME PROGRAM TAG NODE...: the image of a program, on those nodes.
import() {
    local image=$CLUSTER/images/$1-$3.tar name=$1 program=$2 tag=$3 node
    "${here:?}/image" "$name" "$program" "$tag" >"$image" 2>"$CLUSTER/images/said" || cat -- "$CLUSTER/images/said"
    shift 3
    for node in "$@"; do on "$node" ctr --namespace k8s.io images import "$image" >/dev/null; done
}
