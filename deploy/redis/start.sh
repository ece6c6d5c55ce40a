#!/bin/sh
# Starts Redis with the password in REDIS_PASSWORD. The password is passed by
# standard input, because an argument is visible in the list of processes.
#
#   start.sh [redis.conf]
set -eu
: "${REDIS_PASSWORD:?REDIS_PASSWORD is needed}"
exec redis-server "${1:-/usr/local/etc/redis/redis.conf}" - <<END
requirepass $REDIS_PASSWORD
END
