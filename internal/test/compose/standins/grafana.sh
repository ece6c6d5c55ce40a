#!/bin/sh
# Reads what docker-compose.yml mounts for Grafana, writes to the folders that Grafana writes to, and answers the
# health check.
set -eu
: "${GF_SECURITY_ADMIN_PASSWORD:?}" "${GF_LOG_MODE:?}" "${GF_ANALYTICS_REPORTING_ENABLED:?}" "${GF_ANALYTICS_CHECK_FOR_UPDATES:?}"
cat "$GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH" /etc/grafana/provisioning/*/dispatcher.yaml >/dev/null
touch /var/lib/grafana/written
mkdir -p /tmp/files/api
echo '{"database": "ok"}' >/tmp/files/api/health
exec busybox httpd -f -p 3000 -h /tmp/files
