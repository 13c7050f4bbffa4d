#!/usr/bin/env bash
# An export connected and disconnected thousands of times.
chapter "cycles: nbd"
modprobe nbd nbds_max=2
says "guest: cycles: nbd-server serves" '' quietly once start_nbd
endurance shared nbd '"server":"127.0.0.1","export":"web"'
