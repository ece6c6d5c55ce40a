#!/bin/sh
# Runs after each installation and upgrade of the package.
set -eu

if ! getent passwd dispatcher >/dev/null; then
	useradd --system --user-group --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin dispatcher
fi

# After an upgrade, a running replica is restarted: it finishes its requests, and devices report to it again.
if [ -d /run/systemd/system ]; then
	systemctl daemon-reload
	systemctl try-restart dispatcher || echo "dispatcher: the new version did not start: journalctl -u dispatcher" >&2
fi

missing=""
for secret in postgres_dsn redis_url mqtt_password admin_token; do
	[ -e "/etc/dispatcher/secrets/$secret" ] || missing="$missing $secret"
done
if [ -n "$missing" ]; then
	echo "dispatcher: not started. Write these secrets into /etc/dispatcher/secrets, each into a file of its name:$missing"
	echo "dispatcher: then: systemctl enable --now dispatcher. The settings are in /etc/dispatcher/dispatcher.env"
fi
