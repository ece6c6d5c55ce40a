#!/bin/sh
# Runs after the package was removed or purged. Only a purge (`apt-get purge`) deletes the secrets. RPM has no purge.
set -eu
case $1 in
purge) rm -rf /etc/dispatcher ;;
esac
if [ -d /run/systemd/system ]; then systemctl daemon-reload; fi
