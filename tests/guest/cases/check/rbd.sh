#!/usr/bin/env bash
# The conformance kit on rbd, a cluster beside the guest being the server.
chapter "flexvol check: rbd"
says "guest: flexvol check: the cluster is reached" '' quietly once reach_ceph
# The image grows before its PV does: the cluster's admin sees to it.
says "guest: flexvol check: an image with room" 'done' ask_ceph resize claimed 64M
cat >/tmp/rbd.yaml <<YAML
apiVersion: v1
kind: Secret
metadata: {name: ceph, namespace: default}
type: example/rbd
data: {key: $(printf %s "$(<ceph/user.key)" | base64 -w0)}
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: pv-rbd}
spec:
  capacity: {storage: 16Mi}
  accessModes: [ReadWriteOnce]
  flexVolume:
    driver: example/rbd
    secretRef: {name: ceph, namespace: default}
    options: {monitors: "$CEPH:6789", user: user, image: claimed}
YAML
install_driver rbd '{}'
both_hold rbd --volume /tmp/rbd.yaml "${SERVED[@]}" -t secrets::mount_table
