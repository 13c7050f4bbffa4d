#!/usr/bin/env bash
# A share mounted and unmounted thousands of times.
chapter "cycles: cifs"
LIMIT=120 says "guest: cycles: smbd serves" '' quietly once start_smb
endurance shared cifs "\"source\":\"//127.0.0.1/share\",$(secret username alice),$(secret password "$SMB_PASSWORD")"
