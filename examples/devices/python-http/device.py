#!/usr/bin/env python3
"""A device of the dispatcher over HTTP with long poll. It needs Python 3.8 and no other package.

Copy this file and fill in task(). The rest keeps the rules of docs/protocol.md ("A device in 40 lines").
"""
import argparse
import collections
import http.client
import json
import os
import queue
import random
import select
import socket
import ssl
import threading
import time
import urllib.parse

PARKED = 25  # seconds for which the server may park a report while there is no task
MOST_RESULTS = 100  # a report has at most 100 results; with 100 results in the journal the device accepts no task
LARGEST_ANSWER = 128 * 1024  # bytes; no reply is larger
NEVER = float("inf")


def task(payload, stop, holder):
    """Fill in the work of the device. This is the task of the tests: a connection to a TCP server.

    It returns status (succeeded, failed, rejected or returned), output (JSON or None) and error (text). It looks at
    stop at least once a second, and leaves the external system before it returns. holder is "DEVICE TASK TOKEN", for
    an external system that refuses older tokens.
    """
    seconds, system = payload.get("seconds", 0), None
    if payload.get("system"):
        host, port = payload["system"].rsplit(":", 1)
        system = socket.create_connection((host, int(port)), timeout=5)
    with system or open(os.devnull):
        if system:
            system.sendall((holder + "\n").encode())
        end = now() + seconds
        while now() < end and not stop.wait(min(0.1, max(end - now(), 0))):
            if system and select.select([system], [], [], 0)[0]:
                return "failed", None, "the external system closed the connection"
    if payload.get("fail"):
        return "failed", None, payload["fail"]
    size = payload.get("output_bytes", 0)
    return ("failed", None, "stopped") if stop.is_set() else ("succeeded", {"data": "x" * size} if size else None, "")


def now():
    """Seconds of a clock that does not jump, and that runs while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def save(path, text):
    """Replace a file so that a power cut leaves either the old or the new text."""
    with os.fdopen(os.open(path + ".new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.rename(path + ".new", path)
    folder = os.open(os.path.dirname(os.path.abspath(path)), os.O_RDONLY)
    os.fsync(folder)  # without it, a power cut may undo the rename
    os.close(folder)


class Journal:
    """What survives a restart: the boot number, the highest started token, the started task, and the results."""

    def __init__(self, path):
        self.path, self.boot, self.top, self.started, self.results = path, 0, 0, None, []
        if os.path.exists(path):
            with open(path) as file:
                vars(self).update(json.load(file))
        self.boot += 1  # report ids begin with it, so they are unique over restarts
        if self.started:  # its connection ended with the old process, so the device has left the external system
            self.add(self.started, "failed", None, "the device restarted")
        self.save()

    def save(self):
        save(self.path, json.dumps({k: v for k, v in vars(self).items() if k != "path"}))

    def start(self, key):
        """Called before the task starts: after a restart its token is not started again."""
        self.top, self.started = key[1], key
        self.save()

    def add(self, key, status, output, error):
        """When add has returned, the result is kept until the server has acknowledged it."""
        result = {"task": key[0], "token": key[1], "status": status, "error": error[:1000]}
        self.results.append({**result, "output": output} if output is not None else result)
        self.started = None
        self.save()

    def find(self, key):
        return next((r for r in self.results if [r["task"], r["token"]] == key), None)

    def remove(self, key):
        self.results = [r for r in self.results if [r["task"], r["token"]] != key]


class Work:
    """The running task, with its lease."""

    def __init__(self, key, end):
        self.key, self.stop, self.why = key, threading.Event(), ""
        self.end, self.lease = end, end - now()
        self.plan_renewal()

    def extend(self, end):
        self.end = max(self.end, end)
        self.plan_renewal()

    def plan_renewal(self):
        """A renewal is due at half of what is left, until that half is too short."""
        half = (self.end - now()) / 2
        self.renew_at = now() + half if half >= min(1, self.lease / 4) and not self.why else NEVER

    def stop_at(self):
        """The task gets a second to notice stop, so that it has left when the lease ends."""
        return NEVER if self.why else self.end - min(1, self.lease / 10)

    def cancel(self, why):
        self.why = self.why or why
        self.renew_at = NEVER
        self.stop.set()


class Device:
    """The rules of the protocol. All methods except exchange and work_on run in the main thread."""

    def __init__(self, options):
        self.options, self.url = options, urllib.parse.urlsplit(options.server)
        self.tls = ssl.create_default_context(cafile=options.ca_file)
        self.journal, self.events = Journal(options.journal), queue.Queue()
        self.sent = collections.OrderedDict()  # id of each of the last 8 reports -> when it was sent
        self.counter, self.work, self.told = 0, None, None
        self.failures, self.refusals, self.one_by_one = 0, 0, False
        self.connection, self.is_busy, self.next_report = self.connect(), False, now()

    def run(self):
        while True:
            due = min(self.next_report, *((self.work.renew_at, self.work.stop_at()) if self.work else ()), now() + 1)
            try:
                handle, *arguments = self.events.get(timeout=max(0, due - now()))
                handle(*arguments)
            except queue.Empty:
                pass
            if self.work and now() >= self.work.stop_at():
                self.work.cancel("lease ended")  # whatever happened to the network
            if now() >= min(self.next_report, self.work.renew_at if self.work else NEVER):
                self.report()

    def report(self):
        """Send a report. A report that is in flight is given up: its connection is closed."""
        self.counter += 1
        body = {"id": f"{self.journal.boot}-{self.counter}"}
        body["results"] = self.journal.results[: 1 if self.one_by_one else MOST_RESULTS]
        body["running"] = [{"task": self.work.key[0], "token": self.work.key[1]}] if self.work else []
        body["accept"] = len(self.journal.results) < MOST_RESULTS
        wait = 0 if self.work else PARKED
        timeout = wait + 10 if wait else random.uniform(10, 30)
        if self.is_busy:
            hang_up(self.connection)
            self.connection = self.connect()
        self.sent[body["id"]] = now()  # the lease counts from here, not from the reply
        while len(self.sent) > 8:
            self.sent.popitem(last=False)
        if self.work:
            self.work.plan_renewal()
        self.is_busy, self.next_report = True, now() + timeout  # if nothing arrives, the device reports again
        self.connection.timeout = timeout
        threading.Thread(target=self.exchange, args=(self.connection, body, wait), daemon=True).start()

    def connect(self):
        secure = {"context": self.tls} if self.url.scheme == "https" else {}
        kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
        return kind(self.url.hostname, self.url.port, **secure)

    def exchange(self, connection, body, wait):
        """Send one report and wait for its answer, in a thread. Redirects are not followed."""
        status, headers, text = 0, {}, b""
        try:
            with open(self.options.token_file) as file:
                token = file.read().strip()
            header = {"Authorization": "Bearer " + token, **({"Prefer": f"wait={wait}"} if wait else {})}
            if connection.sock is None:
                connection.connect()
            connection.sock.settimeout(connection.timeout)
            if connection is self.connection:  # not given up while it connected
                connection.request("POST", f"/v1/devices/{self.options.device}/report", json.dumps(body), header)
                answer = connection.getresponse()
                status, headers, text = answer.status, answer.headers, answer.read(LARGEST_ANSWER)
        except (OSError, http.client.HTTPException, AttributeError):  # AttributeError: it was closed meanwhile
            connection.close()
        self.events.put((self.on_answer, connection, len(body["results"]), status, headers, text))

    def on_answer(self, connection, results, status, headers, text):
        try:
            answer = json.loads(text or "{}")
            after = answer.get("report_after_ms", 1000 * int(headers.get("Retry-After", -1)))
        except (ValueError, AttributeError):
            status, answer, after = 0, {}, -1000  # not of this protocol: as if nothing had arrived
        is_current = connection is self.connection
        again = status == 200 and self.on_reply(answer)  # also of a report that was given up: it is valid
        if not is_current:
            return
        self.is_busy = False
        if status in (401, 403, 429):
            after = 1000 * min(600 * 2 ** min(self.refusals, 6), 6 * 3600)
            self.refusals += 1
        elif status == 200:
            self.refusals, after = 0, answer.get("report_after_ms", 1000 * self.options.period)
        elif status in (400, 413, 422):
            self.on_refusal(results)
        self.failures = 0 if after >= 0 else self.failures + 1
        self.next_report = now() + (0 if again else after / 1000 if after >= 0 else self.pause())

    def pause(self):
        return random.uniform(0, min(2 ** min(self.failures - 1, 20), self.options.period))

    def on_refusal(self, results):
        """The report is never sent again. Results go one by one, then without output; then they are dropped."""
        if results == 1:
            first = self.journal.results[0]
            if first.pop("output", None) is None:
                self.journal.results.pop(0)
            self.journal.save()
        self.one_by_one = True

    def on_reply(self, reply):
        """Return whether the device has something to report at once."""
        sent, held = self.sent.get(reply.get("re")), reply.get("held_ms", 0)
        if reply.get("credential"):
            save(self.options.token_file, reply["credential"] + "\n")
        if reply.get("acks"):
            for ack in reply["acks"]:  # every outcome is final, also an unknown one
                self.journal.remove([ack["task"], ack["token"]])
            self.journal.save()
            self.one_by_one = self.one_by_one and bool(self.journal.results)
        for entry in reply.get("renewed") or []:
            if self.work and [entry["task"], entry["token"]] == self.work.key and sent:
                self.work.extend(sent + (held + entry["lease_ms"]) / 1000)
        for entry in reply.get("cancel") or []:
            if self.work and [entry["task"], entry["token"]] == self.work.key:
                self.work.cancel(entry.get("why") or "cancelled")
        return reply.get("reason") == "granted" and sent is not None and self.on_grant(reply["task"], sent + held / 1000)

    def on_grant(self, grant, sent):
        key, end = [grant["id"], grant["token"]], sent + grant["lease_ms"] / 1000
        if self.journal.find(key):  # finished: the result goes again, at once only the first time
            again, self.told = key != self.told, key
            return again
        if self.work and self.work.key == key:
            self.work.extend(end)
        elif not self.work and now() < end and key[1] > self.journal.top:  # never an older token or the same one
            self.journal.start(key)
            self.work = Work(key, end)
            threading.Thread(target=self.work_on, args=(self.work, grant.get("payload") or {}), daemon=True).start()
        return False

    def work_on(self, work, payload):
        """Run task() in a thread, so that reports go on meanwhile."""
        try:
            status, output, error = task(payload, work.stop, f"{self.options.device} {work.key[0]} {work.key[1]}")
        except Exception as problem:  # a fault of the task is its result
            status, output, error = "failed", None, repr(problem)
        self.events.put((self.on_end, work, status, output, error))

    def on_end(self, work, status, output, error):
        if work.why and status != "succeeded":
            status, error = "failed", work.why
        self.journal.add(work.key, status, output, error)  # on disk before it is reported
        self.work, self.next_report = None, now()


def hang_up(connection):
    """Wake the thread that waits for the answer on this connection."""
    try:
        socket.socket.shutdown(connection.sock, socket.SHUT_RDWR)  # not SSLSocket.shutdown, which is not thread-safe
    except (OSError, TypeError):  # not connected yet, or closed
        pass


def main():
    parser = argparse.ArgumentParser(description="A device of the dispatcher over HTTP")
    parser.add_argument("--server", required=True, help="http(s)://host:port")
    parser.add_argument("--device", required=True, help="device id")
    parser.add_argument("--token-file", required=True, help="file with the token")
    parser.add_argument("--ca-file", help="certificates that sign the server's certificate; default: of the system")
    parser.add_argument("--journal", required=True, help="file for the results and the highest started token")
    parser.add_argument("--period", type=float, default=30, help="seconds between reports if no answer names a time")
    Device(parser.parse_args()).run()


if __name__ == "__main__":
    main()
