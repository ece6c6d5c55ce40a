#!/bin/sh
# Runs a command while it holds a slot of a pool, with nothing but curl.
#
#   DISPATCHER_URL=http://127.0.0.1:8080 DISPATCHER_TOKEN=... ./lease.sh nightly ./backup.sh --all
#
# The token has the role caller. The exit status is the exit status of the command, or 76 if the command
# was ended because the slot was lost. `dispatcher run` does the same. Unlike this script, it also ends
# the command if it is killed itself.
set -eu
pool=$1
shift
leases=$DISPATCHER_URL/v1/pools/$pool/leases
holder=$(uname -n)-$$ # a holder has at most one lease: a repeated request gets the same lease
length=${LEASE_MS:-60000}
answer=$(mktemp)
token='' keeper=''

# call FILE METHOD URL [OPTIONS of curl] sends a request, writes the response to FILE, and prints the
# status of HTTP. The status is 000 if there was no response.
call() {
	to=$1 method=$2 url=$3
	shift 3
	curl -s --max-time 40 -o "$to" -w '%{http_code}' -X "$method" -H "Authorization: Bearer $DISPATCHER_TOKEN" \
		-H 'Content-Type: application/json' "$@" "$url" || true
}

# number FILE NAME prints the number NAME of the response in FILE, or 0 if there is none.
number() {
	found=$(sed -n "s/.*\"$2\": *\([0-9][0-9]*\).*/\1/p" "$1")
	echo "${found:-0}"
}

# leave gives back the slot, or the position in the queue, when the script ends.
leave() {
	[ -z "$keeper" ] || kill "$keeper" 2>/dev/null || true
	if [ -z "$token" ]; then # still in the queue, or a signal arrived just after the slot was granted
		lease=$(number "$answer" lease) token=$(number "$answer" token)
	fi
	[ "$lease" = 0 ] || call "$answer" DELETE "$leases/$lease$([ "$token" = 0 ] || echo "?token=$token")" >/dev/null
	rm -f "$answer" "$answer.renewed" "$answer.lost"
}
trap leave EXIT
trap 'exit 143' TERM
trap 'exit 130' INT

# Send the request until the slot is granted (201). 202: it waits; the server keeps the position for a
# minute, so ask again. 000, 429 or 5xx: the response was lost, or the server is busy; ask again, too.
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
# The slot may be used for `usable` seconds after it was granted, until `ends`. The time of the grant is
# not known exactly. It is at least held_ms, the time for which the server held the request, after `asked`.
usable=$(($(number "$answer" lease_ms) / 1000))
ends=$((asked + usable + $(number "$answer" held_ms) / 1000))

DISPATCHER_SLOT=$(number "$answer" slot) DISPATCHER_TOKEN=$token "$@" &
command=$!

# keep renews the lease when a third of its length has passed. It ends the command when the lease is
# lost, or when less than a third of its length is left.
keep() {
	pause=$((usable / 3))
	while sleep "$pause" >/dev/null 2>&1; do
		asked=$(date +%s) pause=1
		case $(call "$answer.renewed" POST "$leases/$lease/renew" --max-time 2 --data "{\"token\": $token}") in
		200) ends=$((asked + $(number "$answer.renewed" lease_ms) / 1000)) pause=$((usable / 3)) ;;
		409) break ;; # the lease is lost, or the slot must be given back; "reason" in the response says why
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
while kill -0 "$command" 2>/dev/null; do # a signal interrupted wait, but the command still runs
	code=0
	wait "$command" || code=$?
done
[ ! -e "$answer.lost" ] || code=76
exit "$code"
