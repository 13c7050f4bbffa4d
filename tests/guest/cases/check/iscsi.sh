#!/usr/bin/env bash
# The conformance kit on iscsi, the kernel's target being the server.
chapter "flexvol check: iscsi"
LIMIT=60 says "guest: flexvol check: LIO serves" '' quietly once start_iscsi
truncate -s 64M /srv/iscsi/web-disk0
losetup -c "$(losetup -j /srv/iscsi/web-disk0 | cut -d: -f1)"
install_driver iscsi '{}'
iscsid
both_hold iscsi --volume "$(small_pv iscsi "\"targetPortal\":\"127.0.0.1\",\"iqn\":\"$IQN\"")" "${SERVED[@]}"
pkill -x iscsid
