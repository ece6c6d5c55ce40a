#!/bin/sh
# Does what the entry point of the postgres image does: the first start creates the database cluster, the user and the
# database, with a temporary server that has no TCP port.
set -eu
if [ ! -s "$PGDATA/PG_VERSION" ]; then
	printf '%s\n' "$POSTGRES_PASSWORD" >/tmp/password
	# shellcheck disable=SC2086 # POSTGRES_INITDB_ARGS has several words
	initdb --username="$POSTGRES_USER" --pwfile=/tmp/password $POSTGRES_INITDB_ARGS
	rm /tmp/password
	echo 'host all all all scram-sha-256' >>"$PGDATA/pg_hba.conf"
	temporary="$* -c listen_addresses=''"
	pg_ctl --wait --options="${temporary#postgres }" start
	psql --username="$POSTGRES_USER" --dbname=postgres -v database="$POSTGRES_DB" <<-'END'
		CREATE DATABASE :"database";
	END
	pg_ctl --wait --mode=fast stop
fi
exec "$@"
