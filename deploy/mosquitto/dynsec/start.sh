#!/bin/sh
# Starts mosquitto with the dynamic-security plugin. The first start creates the dispatcher's account. After
# that, only the broker changes the list of accounts.
#
#   start.sh [mosquitto.conf]
#
#   MOSQUITTO_INSIDE               address at which the dispatchers find the broker; default 127.0.0.1
#   MOSQUITTO_DATA                 folder of dynamic-security.json; default /mosquitto/data
#   DISPATCHER_MQTT_USER           default _dispatcher: a name that no device can have
#   DISPATCHER_MQTT_PASSWORD       needed the first time, or
#   DISPATCHER_MQTT_PASSWORD_FILE  the file that holds it
set -eu
umask 077

config=${1:-/mosquitto/config/mosquitto.conf}
case $config in /*) ;; *) config=$PWD/$config ;; esac
user=${DISPATCHER_MQTT_USER:-_dispatcher}
password=${DISPATCHER_MQTT_PASSWORD:-}
if [ -n "${DISPATCHER_MQTT_PASSWORD_FILE:-}" ]; then
    password=$(cat "$DISPATCHER_MQTT_PASSWORD_FILE")
fi
cd "${MOSQUITTO_DATA:-/mosquitto/data}"

if [ ! -s dynamic-security.json ]; then
    if [ -z "$password" ]; then
        echo "start.sh: DISPATCHER_MQTT_PASSWORD or DISPATCHER_MQTT_PASSWORD_FILE is needed for the first start" >&2
        exit 2
    fi
    # The password is passed by standard input, because an argument is visible
    # in the list of processes. The file gets its final name by a rename, so
    # that an interrupted start leaves no incomplete file.
    rm -f dynamic-security.json.first
    printf '%s\n%s\n' "$password" "$password" | mosquitto_ctrl dynsec init dynamic-security.json.first "$user" >/dev/null
    if [ "$(id -u)" = 0 ] && id mosquitto >/dev/null 2>&1; then
        chown mosquitto dynamic-security.json.first # mosquitto switches from root to this user
    fi
    mv dynamic-security.json.first dynamic-security.json
fi

if [ -n "${MOSQUITTO_INSIDE:-}" ]; then
    sed "s/^listener 1884 127.0.0.1\$/listener 1884 $MOSQUITTO_INSIDE/" "$config" >mosquitto.conf
    config=$PWD/mosquitto.conf
    if [ "$(id -u)" = 0 ] && id mosquitto >/dev/null 2>&1; then
        chown mosquitto mosquitto.conf
    fi
fi

unset DISPATCHER_MQTT_PASSWORD password
exec mosquitto -c "$config"
