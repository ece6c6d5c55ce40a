#!/bin/sh
# Runs a command while it holds a slot of a pool, with nothing but curl.
#
#   DISPATCHER_URL=http://127.0.0.1:8080 DISPATCHER_TOKEN=... ./lease.sh nightly ./backup.sh --all
#
# The token is one of the role caller. The exit status is that of the command, or 76 if it was ended
# because the slot was lost. `dispatcher run` does the same, and also ends a command whose script was killed.
set -eu
pool=$1
shift
leases=$DISPATCHER_URL/v1/pools/$pool/leases
holder=$(uname -n)-$$ # it has one lease at most, and gets it again when it asks again
length=${LEASE_MS:-60000}
answer=$(mktemp)
token='' keeper=''

# call FILE METHOD URL ...: what is answered goes to the file; it says the status, 000 if nothing is answered.
call() {
	to=$1 method=$2 url=$3
	shift 3
	curl -s --max-time 40 -o "$to" -w '%{http_code}' -X "$method" -H "Authorization: Bearer $DISPATCHER_TOKEN" \
		-H 'Content-Type: application/json' "$@" "$url" || true
}

# number FILE NAME: a number of an answer.
number() {
	found=$(sed -n "s/.*\"$2\": *\([0-9][0-9]*\).*/\1/p" "$1")
	echo "${found:-0}"
}

leave() {
	[ -z "$keeper" ] || kill "$keeper" 2>/dev/null || true
	if [ -z "$token" ]; then # it waits, or the last answer was a slot
		lease=$(number "$answer" lease) token=$(number "$answer" token)
	fi
	[ "$lease" = 0 ] || call "$answer" DELETE "$leases/$lease$([ "$token" = 0 ] || echo "?token=$token")" >/dev/null
	rm -f "$answer" "$answer.renewed" "$answer.lost"
}
trap leave EXIT
trap 'exit 143' TERM
trap 'exit 130' INT

# 201 is a slot. After 202 the position is kept for a minute: ask again. An answer may be lost, or a
# server be busy: ask again, too.
while
	asked=$(date +%s)
	status=$(call "$answer" POST "$leases" -H "Prefer: wait=${WAIT:-25}" --data "{\"holder\": \"$holder\", \"lease_ms\": $length}")
	[ "$status" != 201 ]
do
	case $status in
	202) echo "waiting, at position $(number "$answer" position)" >&2 && sleep 1 ;;
	000 | 429 | 5??) sleep 1 ;;
	*) cat "$answer" >&2 && exit 1 ;;
	esac
done
lease=$(number "$answer" lease) token=$(number "$answer" token)
# The slot may be used so long, counted from before the request was sent.
usable=$(($(number "$answer" lease_ms) / 1000))
ends=$((asked + usable + $(number "$answer" held_ms) / 1000))

DISPATCHER_SLOT=$(number "$answer" slot) DISPATCHER_TOKEN=$token "$@" &
command=$!

# keep renews the lease when a third of it has passed. It ends the command when it is lost, or when
# it ends within a third.
keep() {
	pause=$((usable / 3))
	while sleep "$pause" >/dev/null 2>&1; do
		asked=$(date +%s) pause=1
		case $(call "$answer.renewed" POST "$leases/$lease/renew" --max-time 2 --data "{\"token\": $token}") in
		200) ends=$((asked + $(number "$answer.renewed" lease_ms) / 1000)) pause=$((usable / 3)) ;;
		409) break ;; # it is lost, or to be given back; "reason" says why
		esac
		[ "$(date +%s)" -lt $((ends - usable / 3)) ] || break
	done
	: >"$answer.lost"
	kill "$command" 2>/dev/null || exit 0
	sleep $((usable / 6)) >/dev/null 2>&1
	kill -9 "$command" 2>/dev/null || true
}
keep &
keeper=$!

trap 'kill "$command"' TERM INT
code=0
wait "$command" || code=$?
while kill -0 "$command" 2>/dev/null; do # a signal ended the waiting, and not the command
	code=0
	wait "$command" || code=$?
done
[ ! -e "$answer.lost" ] || code=76
exit "$code"
