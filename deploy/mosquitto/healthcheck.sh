#!/bin/sh
# Says by its exit status whether the broker lets a dispatcher in. It takes the
# same variables as dynsec/start.sh.
set -eu
umask 077
password=${DISPATCHER_MQTT_PASSWORD:-}
if [ -n "${DISPATCHER_MQTT_PASSWORD_FILE:-}" ]; then
    password=$(cat "$DISPATCHER_MQTT_PASSWORD_FILE")
fi
# By a file: an argument would be seen in the list of processes.
options=$(mktemp -d)
trap 'rm -rf "$options"' EXIT
printf -- '-P %s\n' "$password" >"$options/mosquitto_sub"
# Not the shared subscription: for a moment reports would come here.
XDG_CONFIG_HOME=$options mosquitto_sub -h 127.0.0.1 -p "${MOSQUITTO_PORT:-1884}" -i "\$dispatcher/healthcheck" \
    -u "${DISPATCHER_MQTT_USER:-_dispatcher}" -t "fleet/v1/-/report" -E -W 3
