#!/usr/bin/env bash
# The conformance kit on cifs, smbd being the server.
chapter "flexvol check: cifs"
LIMIT=60 says "guest: flexvol check: smbd serves" '' quietly once start_smb
install_driver cifs '{}'
holds cifs --options "{\"source\":\"//127.0.0.1/share\",$(secret username alice),$(secret password "$SMB_PASSWORD")}" \
    "${SERVED[@]}" -t secrets::mount_table
