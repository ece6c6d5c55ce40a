#!/bin/sh
# Exits with status 0 if Redis answers and has loaded its data.
#
#   healthcheck.sh [port]
set -eu
REDISCLI_AUTH=$REDIS_PASSWORD exec redis-cli -h 127.0.0.1 -p "${1:-6379}" -e ping
