#!/usr/bin/env python3
"""A device of the dispatcher over MQTT. It needs Python 3.8 and paho-mqtt: 1.6 (Debian) or 2.x (PyPI).
Copy this file and fill in task(). The rest keeps the rules of docs/protocol.md ("A device in 40 lines").
"""
import argparse, json, os, queue, random, select, socket, threading, time, urllib.parse
import paho.mqtt.client as mqtt

MOST_RESULTS, MOST_SENT, MOST_EVENTS, NEVER = 100, 8, 64, float("inf")
LARGEST_OUTPUT, LARGEST_RESULTS = 32 * 1024, 60 * 1024  # bytes; a report may have 64 KiB
encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode  # to ASCII, so the length is in bytes


def task(payload, stop, holder):
    """Fill in the work of the device. This is the task of the tests: a connection to a TCP server.

    It returns status (succeeded, failed, rejected or returned), output (JSON or None) and error (text). It calls
    stop.wait(seconds) at least once a second; if that returns True, it leaves the external system and returns. holder
    is "DEVICE TASK TOKEN", for an external system that refuses older tokens.
    """
    system, size = payload.get("system"), payload.get("output_bytes", 0)
    with socket.create_connection(system.rsplit(":", 1), timeout=1) if system else open(os.devnull) as connection:
        if system:
            connection.sendall((holder + "\n").encode())
        end = now() + payload.get("seconds", 0)
        while now() < end and not stop.wait(min(0.1, end - now())):
            if system and select.select([connection], [], [], 0)[0]:
                return "failed", None, "the external system closed the connection"
    if stop.wait(0) or payload.get("fail"):
        return "failed", None, payload.get("fail") or "stopped"
    return "succeeded", {"data": "x" * size} if size else None, ""


def now():  # seconds of a clock that does not jump, and that runs while the machine sleeps
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


def key_of(entry):  # task and token: only both together name a grant
    return int(entry["id"] if "id" in entry else entry["task"]), int(entry["token"])


class Journal:
    """What survives a restart: the boot number, and by task and token each result that has no outcome yet."""
    def __init__(self, path):
        self.path, self.boot, self.results = path, 0, {}
        if os.path.exists(path):
            with open(path) as file:
                self.boot, results = json.load(file)
            self.results = {key_of(result): result for result in results}
        self.boot += 1  # report ids begin with it, so they are unique over restarts
        self.save()

    def save(self):
        """When save has returned, the file is on the disk. A power cut leaves the old or the new file."""
        with os.fdopen(os.open(self.path + ".new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(encode([self.boot, list(self.results.values())]))
            file.flush()
            os.fsync(file.fileno())
        os.rename(self.path + ".new", self.path)
        folder = os.open(os.path.dirname(os.path.abspath(self.path)), os.O_RDONLY)
        os.fsync(folder)  # without it, a power cut may undo the rename
        os.close(folder)

    def keep(self, key, status, output, error):
        if output is not None and len(encode(output)) > LARGEST_OUTPUT:  # the server would drop it
            output, error = None, "the output was too large"
        self.results[key] = {"task": key[0], "token": key[1], "status": status, "output": output, "error": error[:1000]}
        self.save()


class Work:
    """The running task, with its lease. It is also the stop of task(): wait returns whether the task must stop."""
    def __init__(self, key, end):
        self.key, self.lease, self.end, self.why, self.cancelled = key, end - now(), 0, "lease ended", threading.Event()
        self.extend(end)

    def extend(self, end):
        """The device renews the lease after half of the remaining time, unless that half is too short."""
        self.end = max(self.end, end)
        self.stop_at = self.end - min(1, self.lease / 10)  # task() needs time to leave
        half = (self.end - now()) / 2
        self.renew_at = now() + half if half >= min(1, self.lease / 4) else NEVER

    def wait(self, seconds):
        self.cancelled.wait(max(0, min(seconds, self.stop_at - now())))
        return self.cancelled.is_set() or now() >= self.stop_at


class Device:
    """The rules of the protocol. All methods except work_on run in the main thread."""
    def __init__(self, options):
        self.options, self.url = options, urllib.parse.urlsplit(options.server)
        self.journal, self.events, self.topic = Journal(options.journal), queue.Queue(), f"fleet/v1/{options.device}/"
        self.top = max((key[1] for key in self.journal.results), default=0)  # the highest token that was started
        self.counter, self.sent, self.last, self.unanswered = 0, {}, (None, []), 0
        self.work, self.told, self.one_by_one, self.failures, self.refusals = None, None, False, 0, 0
        self.client, self.is_up, self.give_up, self.next_report, self.not_before = None, False, 0, now(), now()

    def run(self):
        while True:
            due = max(min(self.next_report, self.work.renew_at if self.work else NEVER), self.not_before, self.give_up)
            if now() >= due:
                self.report() if self.is_up else self.on_down() if self.client else self.connect()
            try:
                client, handle, *arguments = self.events.get(timeout=max(0, min(due - now(), 1)))
                if client in (None, self.client):  # not of a connection that was given up
                    handle(*arguments)
            except queue.Empty:
                pass
            if self.work and now() >= self.work.end + 1:
                os._exit(1)  # task() ignores stop: with the process ends its use of the external system

    def connect(self):
        """A new client for each connection: the old one would send old reports again."""
        version = [mqtt.CallbackAPIVersion.VERSION2] if hasattr(mqtt, "CallbackAPIVersion") else []  # of paho 2.x
        client = mqtt.Client(*version, client_id=self.options.device, clean_session=True, reconnect_on_failure=False)
        with open(self.options.token_file) as file:
            client.username_pw_set(self.options.device, file.read().strip())
        if self.url.scheme == "mqtts":
            client.tls_set(self.options.ca_file)
        client.on_connect, client.on_subscribe = self.in_main(self.on_connect), self.in_main(self.on_up)
        client.on_message, client.on_disconnect = self.in_main(self.on_message), self.in_main(self.on_down)
        client.on_connect_fail = client.on_disconnect
        client.connect_async(self.url.hostname, self.url.port or (8883 if self.url.scheme == "mqtts" else 1883), 30)
        client.loop_start()
        self.client, self.give_up = client, now() + random.uniform(10, 30)

    def in_main(self, handle):  # returns a callback that queues handle for the main thread, unless the queue is full
        return lambda client, *event: self.events.qsize() < MOST_EVENTS and self.events.put((client, handle, *event))

    def on_connect(self, _data, _flags, code, *_properties):
        if code == 0:
            self.client.subscribe(self.topic + "reply", qos=1)
        elif code in (4, 5, 134, 135):  # a wrong token, or no rights: the codes of paho 1.6, then of paho 2.x
            self.on_down(is_forbidden=True)

    def on_up(self, *_granted):
        self.is_up, self.give_up, self.next_report = True, 0, now()  # subscribed: no reply is missed

    def on_down(self, *_code, is_forbidden=False):
        if self.client:
            self.client.disconnect()
            self.client.loop_stop()
        self.client, self.is_up, self.give_up, self.unanswered = None, False, 0, 0
        self.back_off(is_forbidden)

    def report(self):
        results = [result for key, result in self.journal.results.items() if not self.work or key != self.work.key]
        results = results[: 1 if self.one_by_one else MOST_RESULTS]
        while len(results) > 1 and len(encode(results)) > LARGEST_RESULTS:
            results.pop()
        self.counter += 1
        body = {"id": f"{self.journal.boot}-{self.counter}", "results": results}
        body["accept"] = len(self.journal.results) < MOST_RESULTS
        if self.work:
            body["running"] = [{"task": self.work.key[0], "token": self.work.key[1]}]
            self.work.extend(0)  # this report renews the lease
        self.sent = dict([*self.sent.items(), (body["id"], now())][-MOST_SENT:])  # the lease counts from here
        self.last, self.next_report = (body["id"], results), now() + random.uniform(10, 30)  # if nothing arrives
        self.client.publish(self.topic + "report", encode(body), qos=1)
        self.unanswered += 1
        if self.unanswered > MOST_SENT:  # paho keeps all reports without a PUBACK, so their number has a limit
            self.on_down()

    def on_message(self, _data, message):
        try:
            reply = json.loads(message.payload)
            if reply.get("reason") == "wake" and not reply.get("re"):
                self.next_report = now()
            elif self.last[0] and reply.get("re") in (None, "", self.last[0]):  # else it is late, or repeated
                self.plan(reply, reply.get("report_after_ms"))
            sent = self.sent.get(reply.get("re"))
            self.obey(reply, sent and sent + (reply.get("held_ms") or 0) / 1000)
        except (ValueError, TypeError, KeyError, AttributeError, ArithmeticError, RecursionError) as fault:
            print("unreadable reply:", repr(fault), flush=True)

    def plan(self, reply, after):
        """Set the time of the next report. Errors and pauses also delay results and renewals."""
        (_, results), self.last, self.unanswered = self.last, (None, []), 0
        reason = reply.get("reason")
        is_refused, is_busy = reason in ("invalid", "too_large"), reason in ("busy_server", "unavailable")
        self.failures = self.failures if after is None else 0
        self.refusals = self.refusals if reason == "forbidden" else 0
        self.one_by_one = self.one_by_one or is_refused  # the same bytes are never sent again
        if is_refused:
            if len(results) == 1 and results[0].pop("output", None) is None:  # also refused without output
                self.journal.results.pop(key_of(results[0]), None)
            self.journal.save()
        if reason == "forbidden" or (is_refused or is_busy) and after is None:
            return self.back_off(reason == "forbidden")
        self.next_report = now() + (self.options.period if after is None else after / 1000)
        self.not_before = self.next_report if is_refused or is_busy else self.not_before

    def back_off(self, is_forbidden=False):
        """Wait after a failure or a refusal of the token. Consecutive waits get longer; nothing is sent meanwhile."""
        wait = random.uniform(0, min(2 ** min(self.failures, 20), self.options.period))
        if is_forbidden:
            wait, self.refusals = min(600 * 2 ** min(self.refusals, 6), 6 * 3600), self.refusals + 1
        self.failures += not is_forbidden
        self.next_report = self.not_before = max(self.not_before, now() + wait)

    def obey(self, reply, start):
        """Do what the reply says. Leases count from start; None: the reply answers no report of this boot."""
        for ack in reply.get("acks") or []:  # every outcome is final, also an unknown one
            self.journal.results.pop(key_of(ack), None)
        if reply.get("acks"):
            self.journal.save()
            self.one_by_one = self.one_by_one and bool(self.journal.results)
        for entry in reply.get("renewed") or []:
            if self.work and key_of(entry) == self.work.key and start:
                self.work.extend(start + entry["lease_ms"] / 1000)
        for entry in reply.get("cancel") or []:
            if self.work and key_of(entry) == self.work.key:
                self.work.why = entry.get("why") or "cancelled"
                self.work.cancelled.set()
        if reply.get("reason") == "granted" and start:
            self.on_grant(reply["task"], key_of(reply["task"]), start + reply["task"]["lease_ms"] / 1000)

    def on_grant(self, grant, key, end):
        if self.work and self.work.key == key:
            self.work.extend(end)
        elif key in self.journal.results:  # finished: the result goes again, at once only the first time
            self.next_report, self.told = now() if self.told != key else self.next_report, key
        elif not self.work and now() < end and key[1] > self.top:  # never an older token or the same one
            self.journal.keep(key, "failed", None, "the device restarted")  # the result, unless the task ends
            self.top, self.work = key[1], Work(key, end)
            threading.Thread(target=self.work_on, args=(self.work, grant.get("payload") or {}), daemon=True).start()

    def work_on(self, work, payload):
        try:
            status, output, error = task(payload, work, f"{self.options.device} {work.key[0]} {work.key[1]}")
            ("succeeded", "failed", "rejected", "returned").index(status), encode(output), error + ""  # wrong values raise
        except Exception as fault:  # a fault of the task is its result
            status, output, error = "failed", None, repr(fault)
        self.events.put((None, self.on_end, work, status, output, error))

    def on_end(self, work, status, output, error):
        if status != "succeeded" and work.wait(0):
            status, error = "failed", work.why
        self.journal.keep(work.key, status, output, error)  # on the disk before it is reported
        self.work, self.next_report = None, now()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="A device of the dispatcher over MQTT")
    for name, text in (("server", "mqtt(s)://host:port"), ("device", "device id"), ("token-file", "file with a token"),
                       ("journal", "file for the boot number and the results")):
        parser.add_argument("--" + name, required=True, help=text)
    parser.add_argument("--ca-file", help="certificates that sign the server's certificate; default: of the system")
    parser.add_argument("--period", type=float, default=30, help="seconds between reports if no answer names a time")
    Device(parser.parse_args()).run()
