#!/bin/sh
# Says by its exit status whether Redis answers, with its data loaded.
#
#   healthcheck.sh [port]
set -eu
REDISCLI_AUTH=$REDIS_PASSWORD exec redis-cli -h 127.0.0.1 -p "${1:-6379}" -e ping
