#!/usr/bin/env bash
# A volume activated and let go thousands of times.
chapter "cycles: lvm"
LIMIT=60 says "guest: cycles: a group" '' quietly once start_lvm
endurance shared lvm "$(volume cycled),\"size\":\"20Mi\""
