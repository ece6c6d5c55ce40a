#!/bin/sh
# Runs a command at most as often as a limit set allows, with nothing but curl.
#
#   DISPATCHER_URL=http://127.0.0.1:8080 DISPATCHER_TOKEN=... ./take.sh sms phone=+491701234567 user=ann -- ./send.sh hello
#
# The token has the role caller. The script waits until the limit set allows the take. If a response is
# lost, it sends the take again with the same id, so the take is counted once.
set -eu
limits=$DISPATCHER_URL/v1/limits/$1
shift
facts=''
while [ "$1" != -- ]; do
	case $1 in
	*[\"\\]*) echo "$1: has a quote or a backslash" >&2 && exit 2 ;;
	esac
	facts="$facts${facts:+, }\"${1%%=*}\": \"${1#*=}\""
	shift
done
shift
id=$(uname -n)-$$-$(date +%s)
answer=$(mktemp)
trap 'rm -f "$answer" "$answer.head"' EXIT

# ?status=429 makes the server answer a refused take with the status 429, and with Retry-After: the
# seconds until the take can be allowed.
while
	status=$(curl -s --max-time 10 -D "$answer.head" -o "$answer" -w '%{http_code}' -H "Authorization: Bearer $DISPATCHER_TOKEN" \
		-H 'Content-Type: application/json' --data "{\"id\": \"$id\", \"facts\": {$facts}}" "$limits/take?status=429" || true)
	[ "$status" != 200 ]
do
	case $status in
	429 | 503)
		after=$(sed -n 's/^[Rr]etry-[Aa]fter: *\([0-9]*\).*/\1/p' "$answer.head")
		echo "refused, again in ${after:=1} s" >&2
		sleep "$after"
		;;
	000 | 5??) sleep 1 ;; # no response, or an error of the server or of a proxy
	*) cat "$answer" >&2 && exit 1 ;;
	esac
done
"$@"
