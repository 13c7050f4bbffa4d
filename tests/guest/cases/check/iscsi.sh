#!/usr/bin/env bash
# The conformance kit on iscsi, the kernel's target being the server.
chapter "flexvol check: iscsi"
LIMIT=60 says "guest: flexvol check: LIO serves" '' quietly once start_iscsi
install_driver iscsi '{}'
iscsid
holds iscsi --options "{\"targetPortal\":\"127.0.0.1\",\"iqn\":\"$IQN\"}" "${SERVED[@]}"
pkill -x iscsid
