# Replaces apt-get, systemctl and other commands by functions, for the test that runs the commands of
# docs/operations.md. All files are below the folder $R. Postgres has the port $POSTGRES, Redis the port $REDIS and
# Prometheus the port $PROMETHEUS; other programs have the ports in their configuration files.
set -eu -o pipefail

as_postgres() {
    if [ -n "$PGUSER_ID" ]; then setpriv --reuid="$PGUSER_ID" --regid="$PGUSER_ID" --clear-groups "$@"; else "$@"; fi
}

start_postgres() {
    as_postgres postgres -D "$R/pg" >>"$R/log/postgres" 2>&1 &
    postmaster=$!
    for _ in $(seq 100); do
        pg_isready -q -h "$R/run" -p "$POSTGRES" && return
        sleep 0.1
    done
    return 1
}

apt-get() { # does what the installed packages do: creates folders and, at the first call, starts Postgres
    if [ "$*" = "install -y prometheus" ]; then
        mkdir -p "$R/etc/prometheus" "$R/var/lib/prometheus"
        return
    fi
    mkdir -p "$R"/{run,log,pg,var/lib/redis,var/lib/mosquitto,usr/local/bin,etc/redis,etc/mosquitto,etc/systemd/system,etc/postgresql/15/main/conf.d}
    if [ -n "$PGUSER_ID" ]; then chown "$PGUSER_ID" "$R/run" "$R/pg"; fi
    if id mosquitto >/dev/null 2>&1 && [ "$(id -u)" = 0 ]; then chown mosquitto "$R/var/lib/mosquitto"; fi
    as_postgres initdb -D "$R/pg" -U postgres --auth-local=trust --auth-host=scram-sha-256 >/dev/null
    cat >>"$R/pg/postgresql.conf" <<END
port = $POSTGRES
unix_socket_directories = '$R/run'
include_dir = '$R/etc/postgresql/15/main/conf.d'
END
    printf 'bind 127.0.0.1\nport %s\ndir %s/var/lib/redis\n' "$REDIS" "$R" >"$R/etc/redis/redis.conf"
    start_postgres
}

runuser() { # called as: runuser -u postgres -- psql
    shift 3
    as_postgres "$@" -h "$R/run" -p "$POSTGRES" -U postgres
}

chown() { if [ "$(id -u)" = 0 ]; then command chown "$@"; fi; }

systemctl() {
    case "$*" in
    daemon-reload) ;;
    "restart postgresql")
        kill -INT "$(head -1 "$R/pg/postmaster.pid")"
        wait "$postmaster" || true
        start_postgres
        ;;
    "restart redis-server") redis-server "$R/etc/redis/redis.conf" >"$R/log/redis" 2>&1 & ;;
    "restart mosquitto") run_unit "$R/etc/systemd/system/mosquitto.service.d/dispatcher.conf" "" mosquitto ;;
    "enable --now dispatcher") run_unit "$R/etc/systemd/system/dispatcher.service" "$(grep -v '^#' "$R/etc/dispatcher/dispatcher.env")" dispatcher ;;
    "start dispatcher") systemctl enable --now dispatcher ;;
    "stop dispatcher")
        kill "$unit_process"
        wait "$unit_process"
        ;;
    "restart prometheus")
        prometheus --config.file="$R/etc/prometheus/prometheus.yml" --storage.tsdb.path="$R/var/lib/prometheus" \
            --web.listen-address="127.0.0.1:$PROMETHEUS" >"$R/log/prometheus" 2>&1 &
        ;;
    *) return 1 ;;
    esac
}

# run_unit UNIT ENVIRONMENT NAME runs the unit's command with only this environment. A drop-in file below /run may replace
# the command. %d stands for the folder of the secrets.
run_unit() {
    # shellcheck disable=SC2046 # one word each
    env -i PATH="$PATH" $2 $(sed -n "s|^Environment=||p" "$1" | sed "s|%d|$R/etc/dispatcher/secrets|") \
        $(cat "$1" "$R/run/systemd/system/$3.service.d"/*.conf 2>/dev/null | sed -n 's/^ExecStart=//p' | tail -1) >>"$R/log/$3" 2>&1 &
    unit_process=$!
}

PATH=$R/usr/local/bin:$PATH
