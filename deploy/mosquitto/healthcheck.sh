#!/bin/sh
# Exits with status 0 if a dispatcher can connect to the broker and subscribe.
# It uses the same variables as dynsec/start.sh.
set -eu
umask 077
password=${DISPATCHER_MQTT_PASSWORD:-}
if [ -n "${DISPATCHER_MQTT_PASSWORD_FILE:-}" ]; then
    password=$(cat "$DISPATCHER_MQTT_PASSWORD_FILE")
fi
# The password is passed in a file, because an argument is visible in the list
# of processes.
options=$(mktemp -d)
trap 'rm -rf "$options"' EXIT
printf -- '-P %s\n' "$password" >"$options/mosquitto_sub"
# The check does not use the shared subscription of the dispatchers, because the
# broker would deliver reports to the check for a moment.
XDG_CONFIG_HOME=$options mosquitto_sub -h 127.0.0.1 -p "${MOSQUITTO_PORT:-1884}" -i "\$dispatcher/healthcheck" \
    -u "${DISPATCHER_MQTT_USER:-_dispatcher}" -t "fleet/v1/-/report" -E -W 3
