#!/bin/sh
# A device of the dispatcher over HTTP with long poll, in POSIX sh with curl, jq and mkfifo, on Linux. Times are ms.
#
# Copy this file and fill in task. The rest keeps the rules of docs/protocol.md ("A device in 40 lines").
set -eu
umask 077
usage="usage: device.sh --server URL --device ID --token-file FILE --journal FILE [--ca-file FILE] [--period SECONDS]"

# task PAYLOAD STOP HOLDER is the work of the device: fill it in. This is the task of the tests: a connection to a TCP
# server. PAYLOAD is a file with JSON. The task prints its output as JSON (or nothing) and its error on stderr. Its exit
# status is 0 (succeeded), 1 (failed), 2 (rejected) or 3 (returned). It calls "must_stop STOP" at least once a second, and
# leaves the external system before it returns. HOLDER is "DEVICE TASK TOKEN", for an external system that refuses older
# tokens. The shell option -e has no effect in this function.
task() {
	eval "$(jq -r '@sh "system=\(.system // "") length=\((.seconds // 0) * 1000 | floor) size=\(.output_bytes // 0)
		fail=\(.fail // "")"' "$1")"
	clock
	end=$((now + length))
	rm -f "$run/line"
	mkfifo "$run/line"
	curl -sN --connect-timeout 5 "telnet://$system" <"$run/line" >/dev/null 2>&1 &
	connection=$!
	exec 4>"$run/line"
	echo "$3" >&4
	while [ "$now" -lt "$end" ] && ! must_stop "$2" && kill -0 "$connection" 2>/dev/null; do
		sleep 0.1
		clock
	done
	kill "$connection" 2>/dev/null || fail="the external system closed the connection"
	wait "$connection" 2>/dev/null || true # has left
	if must_stop "$2"; then fail=stopped; fi
	if [ -n "$fail" ]; then
		echo "$fail" >&2
		return 1
	fi
	[ "$size" = 0 ] || { printf '{"data":"' && head -c "$size" /dev/zero | tr '\0' x && printf '"}'; }
}

# must_stop STOP tells the task to stop: the file STOP exists, or this program was killed, which does not kill its task.
must_stop() { [ -e "$1" ] || ! kill -0 $$ 2>/dev/null; }

# clock sets now by a clock that does not jump, and that runs while the machine sleeps.
clock() {
	read -r now _ </proc/uptime
	now=${now%.*}${now#*.}0
}

# random N sets r to a random number below N.
random() {
	r=$(od -An -N2 -tu2 /dev/urandom)
	r=$((r * $1 / 65536))
}

# change FILTER [OPTIONS of jq] changes the journal, so that a power cut leaves either the old or the new journal. It has
# the number of boots, the highest started token, the running task, and the results without an acknowledgement.
change() {
	filter=$1
	shift
	jq -c "$@" "$filter" "$journal" >"$journal.new" && sync "$journal.new" && mv "$journal.new" "$journal" &&
		sync "$(dirname "$journal")" || exit 1 # without the second sync, a power cut may undo the rename
}

# lease_until END moves the end of the lease. The device renews after half of the remaining time, unless it is too short.
lease_until() {
	[ "$1" -le "$end" ] || end=$1
	clock
	half=$(((end - now) / 2)) least=$((lease < 4000 ? lease / 4 : 1000))
	renew_at=$((half < least ? end : now + half))
	stop_at=$((end - (lease < 10000 ? lease / 10 : 1000))) # the task has a second to leave before the lease ends
}

# stop WHY asks the task to stop.
stop() {
	why=$1
	: >"$run/stop"
}

# report sends a report, in the background. Its answer arrives as an event. If an older report still waits, the server
# answers it now.
report() {
	counter=$((counter + 1))
	id=$boot-$counter prefer="Prefer: wait=25" wait=35000 running='[]'
	if [ -n "$task" ]; then
		random 20000
		prefer="" wait=$((10000 + r)) running="[{\"task\":$task,\"token\":$token}]"
		lease_until 0
	fi
	jq -c --arg id "$id" --argjson running "$running" --argjson most "$most" \
		'{$id, results: .results[:$most], $running, accept: (.results | length < 100)}' "$journal" >"$run/body.$counter"
	printf 'Authorization: Bearer %s\n' "$(cat "$token_file")" >"$run/header"
	clock # the lease counts from here, not from the reply
	sent="$(echo "$sent" | tail -n 7)
$id $now"
	next=$((now + wait)) # if nothing arrives, the device reports again
	{
		status=$(curl -s -m $((wait / 1000)) --max-filesize 131072 ${ca_file:+--cacert "$ca_file"} -X POST \
			-H @"$run/header" -H "$prefer" --data-binary @"$run/body.$counter" -D "$run/headers.$counter" \
			-o "$run/answer.$counter" -w '%{http_code}' "$server/v1/devices/$device/report") || [ $? != 28 ] || status=silent
		echo "answer $counter $status" >&3
	} &
}

# on_answer COUNTER STATUS handles the answer to a report.
on_answer() {
	reason="" after="" again=""
	[ "$2" != 200 ] || on_reply "$1" || set -- "$1" 000
	[ -n "$after" ] || [ "$2" = 200 ] || after=$(jq '.report_after_ms // empty | floor' "$run/answer.$1" 2>/dev/null || true)
	[ -n "$after" ] || after=$(sed -n 's/^[Rr]etry-[Aa]fter: *\([0-9][0-9]*\).*/\1000/p' "$run/headers.$1" 2>/dev/null || true)
	count=0
	case $2 in 400 | 413 | 422) count=$(jq '.results | length' "$run/body.$1") ;; esac
	rm -f "$run/body.$1" "$run/headers.$1" "$run/answer.$1"
	[ "$1" = "$counter" ] || return 0 # an older report: its reply is valid, but a newer report waits
	case $2 in
	200) forbidden=0 after=${after:-$period} ;;
	401 | 403 | 429)
		after=$((forbidden < 6 ? 600000 << forbidden : 21600000))
		forbidden=$((forbidden + 1))
		;;
	400 | 413 | 422) on_refusal "$count" ;;
	silent) after=0 ;;
	esac
	if [ -n "$after" ]; then
		pauses=0
	else
		pauses=$((pauses + 1))
		limit=$((pauses > 15 ? period : 1000 << (pauses - 1)))
		random $((limit < period ? limit : period))
		after=$r
	fi
	clock
	next=$((now + ${again:-$after}))
}

# on_refusal COUNT sends results one by one from now on. A result that is refused alone loses its output, then it is
# dropped.
on_refusal() {
	most=1
	[ "$1" != 1 ] || change 'if .results[0].output == null then .results |= .[1:] else del(.results[0].output) end'
}

# on_reply COUNTER handles a reply. It sets after, and again=0 if the device has something to report at once. Unknown
# fields and reasons have no effect.
on_reply() {
	fields=$(jq -r --argjson task "${task:-0}" --argjson token "${token:-0}" --slurpfile journal "$journal" '
		def own: select(.task == $task and .token == $token);
		@sh "re=\(.re // "") held=\(.held_ms // 0 | floor) after=\((.report_after_ms // empty | floor) // "") acks=\(.acks // [] | length)
			renewed=\([.renewed[]? | own | .lease_ms | floor] | max // "") cancelled=\([.cancel[]? | own | .why][0] // "")
			granted=\(if .reason == "granted" then .task.id else "" end) new=\(.task.token // 0)
			usable=\(.task.lease_ms // 0 | floor) credential=\(.credential // "") kept=\(.task as $t | $journal[0].results |
			any(.task == $t.id and .token == $t.token)) left=\($journal[0].results | length) top=\($journal[0].top)"' "$run/answer.$1") || return 1
	eval "$fields"
	if [ -n "$credential" ]; then echo "$credential" >"$token_file.new" && mv "$token_file.new" "$token_file"; fi
	if [ "$acks" != 0 ]; then # every outcome is final
		change '.results |= map(select([.task, .token] as $r | $reply[0].acks | any([.task, .token] == $r) | not))' \
			--slurpfile reply "$run/answer.$1"
		[ "$acks" -lt "$left" ] || most=100
	fi
	at=$(echo "$sent" | awk -v re="$re" '$1 == re { print $2 }') # empty: not one of the last 8 reports since the boot
	[ -z "$renewed" ] || [ -z "$at" ] || lease_until $((at + held + renewed))
	[ -z "$cancelled" ] || stop "$cancelled"
	[ -z "$granted" ] || [ -z "$at" ] || on_grant "$granted" "$new" $((at + held + usable)) "$1"
}

# on_grant TASK TOKEN END COUNTER starts the granted task, unless it is known or old.
on_grant() {
	clock
	if [ "$kept" = true ]; then # finished: the result goes again, at once only the first time
		[ "$told" = "$1 $2" ] || again=0
		told="$1 $2"
	elif [ "$task $token" = "$1 $2" ]; then
		lease_until "$3"
	elif [ -z "$task" ] && [ "$now" -lt "$3" ] && [ "$2" -gt "$top" ]; then # never an old or the same token
		change '.top = $token | .started = {$task, $token}' --argjson task "$1" --argjson token "$2" # before it starts
		task=$1 token=$2 why="" end=0 lease=$(($3 - now))
		lease_until "$3"
		rm -f "$run/stop"
		jq -c '.task.payload // {}' "$run/answer.$4" >"$run/payload"
		{
			(task "$run/payload" "$run/stop" "$device $task $token") >"$run/output" 2>"$run/error" && status=0 || status=$?
			echo "ended $status" >&3
		} &
		echo $! >"$run/task.$machine_boot"
	fi
}

# on_end STATUS writes the result of the task into the journal, before it is reported.
on_end() {
	case $1 in 0) status=succeeded ;; 2) status=rejected ;; 3) status=returned ;; *) status=failed ;; esac
	if [ -n "$why" ] && [ $status != succeeded ]; then
		status=failed
		echo "$why" >"$run/error"
	fi
	jq -es 'length < 2' "$run/output" >/dev/null 2>&1 || { status=failed && echo "not one JSON value" >"$run/error" && : >"$run/output"; }
	change '.started = null | .results += [{$task, $token, $status, error: $error[:1000] | rtrimstr("\n")} +
		if $output == [] then {} else {output: $output[0]} end]' --argjson task "$task" --argjson token "$token" \
		--arg status $status --rawfile error "$run/error" --slurpfile output "$run/output"
	rm -f "$run/task.$machine_boot"
	task="" token=""
	clock
	next=$now
}

server="" device="" token_file="" journal="" ca_file="" period=30
while [ $# -gt 0 ]; do
	case $1 in
	--help) echo "$usage" && exit ;;
	--server) server=$2 ;;
	--device) device=$2 ;;
	--token-file) token_file=$2 ;;
	--journal) journal=$2 ;;
	--ca-file) ca_file=$2 ;;
	--period) period=$2 ;;
	*) echo "$usage" >&2 && exit 2 ;;
	esac
	shift 2
done
period=$((period * 1000)) run=$journal.run machine_boot=$(cat /proc/sys/kernel/random/boot_id)
if [ -e "$run/task.$machine_boot" ]; then # the task of a killed program leaves before its failure is reported
	while kill -0 "$(cat "$run/task.$machine_boot")" 2>/dev/null; do sleep 0.1; done
fi
rm -rf "$run"
mkdir "$run"
mkfifo "$run/events"
exec 3<>"$run/events" # the answers, the end of the task and the timer
[ -s "$journal" ] || echo '{"boot": 0, "top": 0, "started": null, "results": []}' >"$journal"
# A task that ran when the program ended has failed.
change '.boot += 1 | if .started then .results += [.started + {status: "failed", error: "the device restarted"}] |
	.started = null else . end | .top = ([.results[].token] | max // 0)'
boot=$(jq .boot "$journal") counter=0 most=100 sent="" task="" token="" told="" why="" pauses=0 forbidden=0 next=0 timer=""
while :; do
	clock
	due=$((next < now + 1000 ? next : now + 1000))
	if [ -n "$task" ] && [ -z "$why" ]; then
		if [ "$now" -ge "$stop_at" ]; then stop "lease ended"; fi # whatever happened to the network
		if [ "$now" -ge "$renew_at" ]; then next=0; fi
		if [ "$due" -gt "$renew_at" ]; then due=$renew_at; fi
		if [ "$due" -gt "$stop_at" ]; then due=$stop_at; fi
	fi
	if [ "$now" -ge "$next" ]; then report; fi
	[ -z "$timer" ] || kill "$timer" 2>/dev/null || true
	pause=$((due > now ? due - now : 0))
	{ sleep "$((pause / 1000)).$(printf %03d $((pause % 1000)))" && echo tick >&3; } &
	timer=$!
	read -r event argument status <&3
	case $event in
	answer) on_answer "$argument" "$status" ;;
	ended) on_end "$argument" ;;
	tick) timer="" ;;
	esac
done
