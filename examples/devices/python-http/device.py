#!/usr/bin/env python3
"""A device of the dispatcher over HTTP with long poll. It needs Python 3.8 and no other package.
Copy this file and fill in task(). The rest keeps the rules of docs/protocol.md ("A device in 40 lines").
"""
import argparse, contextlib, http.client, json, math, os, queue, random, select, socket, ssl, threading, time, urllib.parse

PARKED = 25  # seconds for which the server may park a report while there is no task
MOST_RESULTS = 100  # in one report; with 100 results in the journal the device accepts no task
STATUSES = ["succeeded", "failed", "rejected", "returned"]
LARGEST_ANSWER = 128 * 1024  # bytes; no reply is larger


def task(payload, stop, holder):
    """Fill in the work of the device. This is the task of the tests: a connection to a TCP server.

    It returns status (succeeded, failed, rejected or returned), output (JSON or None) and error (text). It looks at
    stop at least once a second, and leaves the external system before it returns. holder is "DEVICE TASK TOKEN", for
    an external system that refuses older tokens.
    """
    system = None
    if payload.get("system"):
        host, port = payload["system"].rsplit(":", 1)
        system = socket.create_connection((host, int(port)), timeout=5)
    with system or open(os.devnull):
        if system:
            system.sendall((holder + "\n").encode())
        end = now() + payload.get("seconds", 0)
        while now() < end and not stop.wait(min(0.1, max(end - now(), 0))):
            if system and select.select([system], [], [], 0)[0]:
                return "failed", None, "the external system closed the connection"
    if stop.is_set() or payload.get("fail"):
        return "failed", None, payload.get("fail") or "stopped"
    size = payload.get("output_bytes", 0)
    return "succeeded", {"data": "x" * size} if size else None, ""


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
    """What survives a restart. When a method has returned, its change is on disk."""

    def __init__(self, path):
        self.path, self.boot, self.started, self.results = path, 0, None, []
        if os.path.exists(path):
            with open(path) as file:
                self.boot, self.started, self.results = json.load(file)
        self.boot += 1  # report ids begin with it, so they are unique over restarts
        if self.started:  # its connection ended with the old process: the device has left the external system
            self.add(self.started, "failed", None, "the device restarted")
        self.top = max((r["token"] for r in self.results), default=0)  # the highest token started; older grants are dropped
        self.save()

    def save(self):
        save(self.path, json.dumps([self.boot, self.started, self.results]))

    def start(self, key):  # before the task starts: its token is not started again after a restart
        self.top, self.started = key[1], key
        self.save()

    def add(self, key, status, output, error):  # before it is reported; kept until the server has acknowledged it
        result = {"task": key[0], "token": key[1], "status": status, "error": error[:1000]}
        self.results.append({**result, "output": output} if output is not None else result)
        self.started = None
        self.save()

    def remove(self, keys):
        self.results = [r for r in self.results if [r["task"], r["token"]] not in keys]
        self.save()


class Work:
    """The running task, with its lease."""

    def __init__(self, key, end):
        self.key, self.stop, self.why, self.end, self.lease = key, threading.Event(), "", end, end - now()
        self.extend(end)

    def extend(self, end):  # a renewal is due at half of what is left, until that half is too short
        self.end = max(self.end, end)
        half = (self.end - now()) / 2
        self.renew_at = now() + half if half >= min(1, self.lease / 4) and not self.why else math.inf

    def stop_at(self):  # the task gets a second to notice stop, so that it has left when the lease ends
        return math.inf if self.why else self.end - min(1, self.lease / 10)

    def cancel(self, why):
        self.why, self.renew_at = self.why or why, math.inf
        self.stop.set()


class Device:
    """The rules of the protocol. All methods except exchange and work_on run in the main thread."""

    def __init__(self, options):
        self.options, self.url = options, urllib.parse.urlsplit(options.server)
        is_secure = self.url.scheme == "https"
        self.secure = {"context": ssl.create_default_context(cafile=options.ca_file)} if is_secure else {}
        self.journal, self.events = Journal(options.journal), queue.Queue()
        self.sent = {}  # id of each of the last 8 reports -> when it was sent
        self.counter, self.failures, self.refusals, self.one_by_one = 0, 0, 0, False
        self.work, self.told = None, None
        self.connection, self.is_busy, self.next_report = self.connect(), False, now()

    def run(self):
        while True:
            due = min(self.next_report, *([self.work.renew_at, self.work.stop_at()] if self.work else []), now() + 1)
            try:
                handle, *arguments = self.events.get(timeout=max(0, due - now()))
                handle(*arguments)
            except queue.Empty:
                pass
            if self.work and now() >= self.work.stop_at():
                self.work.cancel("lease ended")  # whatever happened to the network
            if now() >= min(self.next_report, self.work.renew_at if self.work else math.inf):
                self.report()

    def report(self):
        """Send a report. If an earlier report still waits for its answer, its connection is closed first."""
        self.counter += 1
        body = {"id": f"{self.journal.boot}-{self.counter}", "accept": len(self.journal.results) < MOST_RESULTS}
        body["results"] = self.journal.results[: 1 if self.one_by_one else MOST_RESULTS]
        body["running"] = [{"task": self.work.key[0], "token": self.work.key[1]}] if self.work else []
        wait = 0 if self.work else PARKED
        if self.is_busy:
            with contextlib.suppress(OSError, TypeError):  # not connected yet, or closed
                socket.socket.shutdown(self.connection.sock, socket.SHUT_RDWR)  # wakes the thread that waits for the answer
            self.connection = self.connect()
        self.is_busy, self.connection.timeout = True, wait + 10 if wait else random.uniform(10, 30)
        self.sent = {**dict([*self.sent.items()][-7:]), body["id"]: now()}  # the lease counts from here, not from the reply
        self.next_report = now() + self.connection.timeout  # if nothing arrives, the device reports again
        if self.work:
            self.work.extend(self.work.end)
        threading.Thread(target=self.exchange, args=(self.connection, body, wait), daemon=True).start()

    def connect(self):
        kind = http.client.HTTPSConnection if self.secure else http.client.HTTPConnection
        return kind(self.url.hostname, self.url.port, **self.secure)

    def exchange(self, connection, body, wait):
        """Send one report and wait for its answer, in a thread. Redirects are not followed."""
        status, headers, text = 0, {}, b""
        try:
            with open(self.options.token_file) as file:
                header = {"Authorization": "Bearer " + file.read().strip(), **({"Prefer": f"wait={wait}"} if wait else {})}
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
        again = False
        try:
            answer = json.loads(text or "{}")
            after = answer.get("report_after_ms", 1000 * int(headers.get("Retry-After", -1))) / 1000
            again = status == 200 and self.on_reply(answer)  # also of a report that was given up: it is valid
        except (ValueError, AttributeError, KeyError, TypeError):  # not of this protocol: as if nothing had arrived
            status, after = 0, -1
        if connection is not self.connection:
            return
        self.is_busy = False
        if status == 200:
            self.refusals, after = 0, 0 if again else after if after >= 0 else self.options.period
        elif status in (401, 403, 429):
            self.refusals, after = self.refusals + 1, min(600 * 2 ** min(self.refusals, 6), 6 * 3600)
        elif status in (400, 413, 422):
            self.on_refusal(results)
        self.failures = 0 if after >= 0 else self.failures + 1
        pause = random.uniform(0, min(2 ** min(self.failures - 1, 20), self.options.period))
        self.next_report = now() + (after if after >= 0 else pause)

    def on_refusal(self, results):
        """After a refusal, results are sent one by one, then without output, then dropped: never the same bytes."""
        self.one_by_one = True
        if results == 1:
            first = self.journal.results[0]
            self.journal.remove([] if first.pop("output", None) is not None else [[first["task"], first["token"]]])

    def on_reply(self, reply):
        """Return whether the device has something to report at once. Unknown fields and reasons have no effect."""
        sent, held = self.sent.get(reply.get("re")), reply.get("held_ms", 0) / 1000
        if reply.get("credential"):
            save(self.options.token_file, reply["credential"] + "\n")
        if reply.get("acks"):
            self.journal.remove([[a["task"], a["token"]] for a in reply["acks"]])  # every outcome is final
            self.one_by_one = self.one_by_one and bool(self.journal.results)
        for entry in reply.get("renewed") or []:
            if self.work and [entry["task"], entry["token"]] == self.work.key and sent is not None:
                self.work.extend(sent + held + entry["lease_ms"] / 1000)
        for entry in reply.get("cancel") or []:
            if self.work and [entry["task"], entry["token"]] == self.work.key:
                self.work.cancel(entry.get("why") or "cancelled")
        return reply.get("reason") == "granted" and sent is not None and self.on_grant(reply["task"], sent + held)

    def on_grant(self, grant, sent):
        key, end = [grant["id"], grant["token"]], sent + grant["lease_ms"] / 1000
        if any([r["task"], r["token"]] == key for r in self.journal.results):
            again, self.told = key != self.told, key  # finished: the result goes again, at once only the first time
            return again
        if self.work and self.work.key == key:
            self.work.extend(end)
        elif not self.work and now() < end and key[1] > self.journal.top:  # never an older token or the same one
            self.journal.start(key)
            self.work = Work(key, end)
            threading.Thread(target=self.work_on, args=(self.work, grant.get("payload") or {}), daemon=True).start()
        return False

    def work_on(self, work, payload):
        try:
            status, output, error = task(payload, work.stop, f"{self.options.device} {work.key[0]} {work.key[1]}")
            STATUSES.index(status), json.dumps(output, allow_nan=False), error + ""  # raise an exception for a wrong value
        except Exception as problem:  # a fault of the task is its result
            status, output, error = "failed", None, repr(problem)
        self.events.put((self.on_end, work, status, output, error))

    def on_end(self, work, status, output, error):
        if work.why and status != "succeeded":
            status, error = "failed", work.why
        self.journal.add(work.key, status, output, error)
        self.work, self.next_report = None, now()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="A device of the dispatcher over HTTP with long poll")
    for name, text in (("server", "http(s)://host:port"), ("device", "id"), ("token-file", "file with the token"),
                       ("journal", "file for the results and the running task")):
        parser.add_argument("--" + name, required=True, help=text)
    parser.add_argument("--ca-file", help="certificates that the server's certificate is checked against")
    parser.add_argument("--period", type=float, default=30, help="seconds between reports if no answer names a time")
    Device(parser.parse_args()).run()
