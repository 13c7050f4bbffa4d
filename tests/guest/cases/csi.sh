#!/usr/bin/env bash
# nfs served as a CSI driver: csi-sanity of kubernetes-csi, every spec that applies to what is only
# published.
chapter "csi"

# csi_serves, csi_ends: flexvold with the driver that kubelet would call.
csi_serves() {
    ./flexvold csi --driver "$vendor/nfs" --plugin-dir "$PLUGINS" --kubelet-root "$KUBELET" --state /tmp/csi \
        --endpoint unix:///tmp/csi.sock --node-id guest </dev/null >/tmp/csi.log 2>&1 &
    echo "$!" >/tmp/csi.pid
    until ./flexvold csi --driver "$vendor/nfs" --endpoint unix:///tmp/csi.sock --check 2>/tmp/csi.check; do
        sleep 0.2
    done
}
csi_ends() {
    local pid
    pid=$(</tmp/csi.pid)
    kill "$pid"
    while [[ -e /proc/$pid/exe ]]; do sleep 0.1; done
}

# sanity VERSION: how many specs ran and passed, or what failed.
sanity() {
    printf 'server: nfs.test\npath: /srv/nfs\nversion: "%s"\n' "$1" >/tmp/csi.yaml
    mkdir -p "$KUBELET/pods/1/volumes/kubernetes.io~csi"
    ./csi-sanity --csi.endpoint=/tmp/csi.sock --csi.mountdir="$KUBELET/pods/1/volumes/kubernetes.io~csi/v" \
        --csi.stagingdir=/tmp/staging --csi.testvolumeparameters=/tmp/csi.yaml --ginkgo.no-color >/tmp/sanity 2>&1
    grep -E '^(Ran [0-9]|SUCCESS|FAIL)|\[FAIL\]' /tmp/sanity
    rmdir -p --ignore-fail-on-non-empty "$KUBELET/pods/1/volumes/kubernetes.io~csi"
}

if [[ -e csi-sanity ]]; then
    LIMIT=60 says "guest: csi: knfsd serves" '' quietly once start_nfs
    name_server nfs.test 127.0.1.1
    install_driver nfs '{}'
    says "guest: csi: flexvold serves nfs" "$vendor/nfs is ready" csi_serves
    for version in 4.2 3; do
        LIMIT=200 says "guest: csi: nfs v$version: csi-sanity" $'Ran 32 of *\nSUCCESS! -- 32 Passed | 0 Failed*' \
            sanity "$version"
        says "guest: csi: nfs v$version: nothing is left" '' mounted_types
    done
    says "guest: csi: flexvold ends" '' csi_ends
else
    skips "guest csi-sanity" "it is built of Go modules, where there is Go"
fi
