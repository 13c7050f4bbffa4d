#!/usr/bin/env bash
# A unit logged in to and out of thousands of times.
chapter "cycles: iscsi"
LIMIT=120 says "guest: cycles: a target" '' quietly eval 'once start_iscsi && iscsid'
endurance shared iscsi "\"targetPortal\":\"127.0.0.1\",\"iqn\":\"$IQN\""
pkill -x iscsid
