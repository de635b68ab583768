"""The keeper end to end: it makes the schema at a deploy, and Redis complete, at first and after it lost everything."""

import http.server
import json
import threading
import time

from cases import holds, same
from hub import event

COMPLETE_WITHIN_S = 90
TRUST_S = 6


class Answers:
    """Where CloudFormation would wait: takes one PUT after another."""

    def __init__(self):
        taken = self.taken = []

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_PUT(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                taken.append((self.headers.get("Content-Type"), json.loads(body)))
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_):
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/answer"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self):
        self._server.shutdown()
        self._server.server_close()


def schema_is_made(hub):
    """Twice: an update finds nothing to do."""
    answers = Answers()
    try:
        for kind in ("Create", "Update"):
            request = {**event("keeper-schema"), "RequestType": kind, "ResponseURL": answers.url}
            hub.invoke("keeper", request)
            content_type, answer = answers.taken.pop()
            same(f"{kind}: {answer}", (answer["Status"], content_type), ("SUCCESS", None))
            same("for whom", (answer["RequestId"], answer["LogicalResourceId"]), ("unique-id-1234", "Schema"))
        bad = {**event("keeper-schema"), "ResponseURL": answers.url, "ResourceProperties": {}}
        hub.invoke("keeper", bad)
        _, answer = answers.taken.pop()
        same(f"without a version: {answer}", answer["Status"], "FAILED")
        holds("it says why", "SchemaVersion" in answer["Reason"], answer["Reason"])
    finally:
        answers.close()


def becomes_complete(hub):
    """Runs the schedule until the keeper calls Redis complete: it waits for checks that began before the loss."""
    deadline = time.monotonic() + COMPLETE_WITHIN_S
    while not (kept := hub.invoke("keeper", event("keeper-schedule")))["isComplete"]:
        holds("Redis becomes complete", time.monotonic() < deadline, f"{kept}")
        time.sleep(1)


def lost_and_refilled(hub, deployment):
    """Redis loses everything: what was NEW is SEEN by PostgreSQL, and by Redis once the keeper filled it."""
    keys = [f"lost {n}" for n in range(20)]
    for key in keys:
        same(f"{key}: first", hub.check("e2e:lost", key, key=key).json["status"], "NEW")
    hub.drain()
    deployment.flush_redis()
    # What a process last heard of Redis it believes for 5 s at most; until then a repeat may be NEW.
    time.sleep(TRUST_S)
    for key in keys[:5]:
        seen = hub.check("e2e:lost", key, key=key)
        same(f"{key}: {seen}", (seen.json["status"], seen.json["decidedBy"]), ("SEEN", "cold"))
    becomes_complete(hub)
    deadline = time.monotonic() + COMPLETE_WITHIN_S
    # On a busy machine a check may find Redis too slow again, and then the keeper has to fill once more.
    while "cold" in (by := [seen_by(hub, key) for key in keys]):
        holds("Redis decides again", time.monotonic() < deadline, f"{by}")
        time.sleep(1)
        becomes_complete(hub)
    same("unheard of", hub.check("e2e:lost", "unheard", key="unheard of").json["status"], "NEW")


def seen_by(hub, key):
    """Which tier knows that the key was seen; whichever it is, it is never NEW."""
    seen = hub.check("e2e:lost", key, key=key)
    same(f"{key}: {seen}", seen.json["status"], "SEEN")
    return seen.json["decidedBy"]


def deploy(cases, hub, label):
    cases.run(f"{label}: the schema is made, and CloudFormation answered", schema_is_made, hub)
    cases.run(f"{label}: an empty Redis becomes complete", becomes_complete, hub)


def run(cases, hub, deployment, label):
    cases.run(f"{label}: lost and refilled", lost_and_refilled, hub, deployment)
