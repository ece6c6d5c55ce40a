#!/bin/sh
# Runs before the package is removed (Debian: `remove`, RPM: 0), and before an upgrade, which needs nothing here.
set -eu
case $1 in
remove | 0)
	if [ -d /run/systemd/system ]; then systemctl disable --now dispatcher; fi
	;;
esac
