"""Claims end to end: one processor at a time, fenced, its stored answer replayed, and every attempt in history."""

import base64
import hashlib
import time
from concurrent.futures import ThreadPoolExecutor

from cases import holds, same
from scenarios import is_problem

SCOPE = "e2e:claims"
# Every byte there is: what comes back must be the same ones.
STORED = {"contentType": "application/octet-stream", "body": base64.b64encode(bytes(range(256))).decode()}


def sha256(payload):
    return hashlib.sha256(payload.encode()).hexdigest()


def is_refused(answer, status, name):
    is_problem(answer, status, "")
    same("type of the problem", answer.json["type"], f"urn:dedup-ledger:problem:{name}")


def new_claim(answer, attempt):
    """NEW with a claim of this attempt; its token."""
    same(f"{answer}", (answer.status, answer.json["status"], answer.json["disposition"]), (200, "NEW", "PROCESS"))
    same("state", (answer.json["state"], answer.json["attempt"]), ("IN_PROGRESS", attempt))
    return answer.json["claim"]["token"]


def is_told_to_wait(answer, lease_s):
    same(f"{answer}", (answer.status, answer.json["status"], answer.json["disposition"]), (200, "SEEN", "RETRY"))
    same("state", answer.json["state"], "IN_PROGRESS")
    seconds = answer.json["retryAfterSeconds"]
    holds("retryAfterSeconds lies inside the lease", 1 <= seconds <= lease_s, repr(answer))
    same("header Retry-After", answer.headers.get("retry-after"), str(seconds))
    holds("nobody else is shown the token", "claim" not in answer.json, repr(answer))


def is_acknowledged(answer, state, attempt):
    same(f"{answer}", (answer.status, answer.json["state"], answer.json["attempt"]), (200, state, attempt))
    return answer.json


def history(hub, payload, key):
    """What PostgreSQL knows of a message, by its hash."""
    found, _ = hub.messages([("tenant", "e2e"), ("payloadSha256", sha256(payload))])
    rows = [row for row in found if row.get("key") == key]
    same(f"registrations of {key} in history", len(rows), 1)
    return rows[0]


def trail(row):
    """Each attempt of a row: number, outcome, reason, source service."""
    return [
        (attempt["attempt"], attempt["outcome"], attempt.get("reason"), attempt.get("sourceService"))
        for attempt in row.get("attempts", [])
    ]


def resolved_and_replayed(hub):
    key, payload = "resolved", "claimed, resolved"
    first = hub.claim(SCOPE, payload, key=key, sourceService="as4-ingest")
    token = new_claim(first, 1)
    is_told_to_wait(hub.claim(SCOPE, payload, key=key), 60)
    is_told_to_wait(hub.check(SCOPE, payload, key=key), 60)
    done = is_acknowledged(hub.act("resolve", SCOPE, token, key=key, response=STORED), "RESOLVED", 1)
    again = hub.act("resolve", SCOPE, token, key=key, response=STORED)
    same("the same again", (again.status, again.json), (200, done))
    for seen in (hub.claim(SCOPE, payload, key=key), hub.check(SCOPE, payload, key=key)):
        same(f"{seen}", (seen.json["status"], seen.json["disposition"]), ("SEEN", "DISCARD"))
        same("state", (seen.json["state"], seen.json["attempt"]), ("RESOLVED", 1))
        same("the stored response", seen.json["response"], STORED)
        same("its bytes", base64.b64decode(seen.json["response"]["body"]), bytes(range(256)))
        same("header Idempotent-Replayed", seen.headers.get("idempotent-replayed"), "true")
        same("firstSeenAt", seen.json["firstSeenAt"], first.json["firstSeenAt"])
    is_refused(hub.act("resolve", SCOPE, token, key=key), 409, "claim-resolved")
    is_refused(hub.act("fail", SCOPE, token, key=key), 409, "claim-resolved")
    same("the first one stands", hub.check(SCOPE, payload, key=key).json["response"], STORED)

    def in_history():
        row = history(hub, payload, key)
        same("state and count", (row["state"], row["attempt"], row["retryCount"]), ("RESOLVED", 1, 5))
        same("trail", trail(row), [(1, "RESOLVED", None, "as4-ingest")])
        attempt = row["attempts"][0]
        same("its start", attempt["startedAt"], first.json["firstSeenAt"])
        holds("its end is known", attempt["startedAt"] <= attempt["endedAt"], f"{attempt}")

    hub.drain_until(in_history)
    found, _ = hub.messages([("scope", SCOPE), ("key", key)])
    same("by key", [(row["state"], trail(row)) for row in found], [("RESOLVED", [(1, "RESOLVED", None, "as4-ingest")])])


def failed_and_taken_over(hub):
    key, payload = "failed", "claimed, failed"
    first = hub.claim(SCOPE, payload, key=key, sourceService="as4-ingest")
    stale = new_claim(first, 1)
    is_acknowledged(hub.act("fail", SCOPE, stale, key=key, reason="no partner profile"), "FAILED", 1)
    second = hub.claim(SCOPE, payload, key=key, sourceService="edifact")
    token = new_claim(second, 2)
    same("the first sighting stands", second.json["firstSeenAt"], first.json["firstSeenAt"])
    same("and is counted from", second.json["retryCount"], 1)
    is_refused(hub.act("resolve", SCOPE, stale, key=key, response=STORED), 409, "stale-claim")
    is_refused(hub.act("fail", SCOPE, stale, key=key), 409, "stale-claim")
    is_refused(hub.act("renew", SCOPE, stale, key=key, leaseSeconds=60), 409, "stale-claim")
    renewed = is_acknowledged(hub.act("renew", SCOPE, token, key=key, leaseSeconds=600), "IN_PROGRESS", 2)
    holds("the lease is longer", renewed["leaseEndsAt"] > second.json["claim"]["leaseEndsAt"], f"{renewed}")
    is_acknowledged(hub.act("resolve", SCOPE, token, key=key), "RESOLVED", 2)
    seen = hub.check(SCOPE, payload, key=key)
    same(f"{seen}", (seen.json["disposition"], seen.json["attempt"]), ("DISCARD", 2))
    holds("no response was stored", "response" not in seen.json and "idempotent-replayed" not in seen.headers, repr(seen))

    def in_history():
        row = history(hub, payload, key)
        same("state and count", (row["state"], row["attempt"], row["retryCount"]), ("RESOLVED", 2, 2))
        same("trail", trail(row), [(1, "FAILED", "no partner profile", "as4-ingest"), (2, "RESOLVED", None, "edifact")])

    hub.drain_until(in_history)


def crashed_and_taken_over(hub):
    """The holder dies, its lease runs out, the retry gets attempt 2, and the holder that was only slow is refused."""
    key, payload = "crashed", "claimed, never heard of again"
    late = new_claim(hub.claim(SCOPE, payload, lease_s=1, key=key), 1)
    deadline = time.monotonic() + 30
    while (retried := hub.claim(SCOPE, payload, key=key)).json["status"] == "SEEN":
        is_told_to_wait(retried, 1)
        holds("the lease ends", time.monotonic() < deadline)
        time.sleep(0.2)
    token = new_claim(retried, 2)
    is_refused(hub.act("resolve", SCOPE, late, key=key, response=STORED), 409, "stale-claim")
    is_acknowledged(hub.act("resolve", SCOPE, token, key=key), "RESOLVED", 2)

    def in_history():
        outcomes = [(number, outcome) for number, outcome, _, _ in trail(history(hub, payload, key))]
        same("trail", outcomes, [(1, "LAPSED"), (2, "RESOLVED")])

    hub.drain_until(in_history)


def one_holder_among_forty(hub):
    with ThreadPoolExecutor(40) as pool:
        answers = list(pool.map(lambda _: hub.claim("e2e:race", "a", key="claimed"), range(40)))
    holds("every answer is a verdict or 503", all(a.status in (200, 503) for a in answers), f"{answers}")
    verdicts = [(a.json["status"], a.json["disposition"]) for a in answers if a.status == 200]
    same("NEW among 40 claims at once", verdicts.count(("NEW", "PROCESS")), 1)
    same("the others", set(verdicts) - {("NEW", "PROCESS")}, {("SEEN", "RETRY")})


def bad_acts(hub):
    key, payload = "bad acts", "claimed, badly acted on"
    token = new_claim(hub.claim(SCOPE, payload, key=key), 1)
    other = new_claim(hub.claim(SCOPE, payload, key="another"), 1)
    # What is at the bound is taken; one byte more is not.
    large = {**STORED, "body": base64.b64encode(bytes(65_537)).decode()}
    largest = {**STORED, "body": base64.b64encode(bytes(65_536)).decode()}
    for name, used, fields, status, problem in (
        ("resolve", "nonsense", {}, 400, "malformed-token"),
        ("resolve", other, {}, 403, "foreign-token"),
        ("renew", token, {"leaseSeconds": 0}, 400, "invalid-lease"),
        ("renew", token, {"leaseSeconds": 43_201}, 400, "invalid-lease"),
        ("renew", token, {}, 400, "invalid-lease"),
        ("resolve", token, {"response": {**STORED, "body": "broken"}}, 400, "invalid-response"),
        ("resolve", token, {"response": {**STORED, "contentType": ""}}, 400, "invalid-response"),
        ("resolve", token, {"response": large}, 413, "response-too-large"),
        ("resolve", token, {"answer": {}}, 400, "invalid-input"),
    ):
        is_refused(hub.act(name, SCOPE, used, key=key, **fields), status, problem)
    is_refused(hub.act("resolve", "stranger:claims", token, key=key), 403, "tenant-not-granted")
    is_refused(hub.check(SCOPE, payload, key="no claim", claim={"leaseSeconds": 0}), 400, "invalid-lease")
    is_told_to_wait(hub.check(SCOPE, payload, key=key), 60)
    is_acknowledged(hub.act("resolve", SCOPE, token, key=key, response=largest), "RESOLVED", 1)
    same("64 KiB come back", hub.check(SCOPE, payload, key=key).json["response"], largest)


def levels_of_one_message(hub):
    """An atomic batch: all are claimed, in history too; or none is, and nothing is counted."""
    def levels(*keys):
        payload = sha256("three levels")
        return [{"scope": SCOPE, "key": key, "payloadSha256": payload, "claim": {"leaseSeconds": 60}} for key in keys]

    applied = hub.batch(levels("transport", "envelope", "document"), atomic=True)
    same(f"{applied}", (applied.status, applied.json["applied"]), (200, True))
    same("each", [(r["status"], r["attempt"]) for r in applied.json["results"]], [("NEW", 1)] * 3)
    same("a token each", len({result["claim"]["token"] for result in applied.json["results"]}), 3)

    refused = hub.batch(levels("transport 2", "envelope"), atomic=True)
    same(f"{refused}", (refused.status, refused.json["applied"]), (200, False))
    same("what is free", refused.json["results"][0], {"status": "NEW", "disposition": "RETRY", "applied": False})
    seen = refused.json["results"][1]
    same("what is not", (seen["status"], seen["disposition"], seen["applied"]), ("SEEN", "RETRY", False))
    claimed = hub.claim(SCOPE, "three levels", key="transport 2")
    new_claim(claimed, 1)

    def in_history():
        for key in ("transport", "envelope", "document"):
            row = history(hub, "three levels", key)
            same(f"{key}: state and count", (row["state"], row["retryCount"]), ("IN_PROGRESS", 0))

    hub.drain_until(in_history)


def sample_events_of_claims(hub):
    first = hub.send_event("check", "check-claim")
    token = new_claim(first, 1)
    for name in ("claim-renew", "claim-fail", "claim-resolve"):
        is_refused(hub.send_event("check", name), 403, "foreign-token")
    is_acknowledged(hub.send_event("check", "claim-renew", token=token), "IN_PROGRESS", 1)
    is_acknowledged(hub.send_event("check", "claim-fail", token=token), "FAILED", 1)
    token = new_claim(hub.send_event("check", "check-claim"), 2)
    is_acknowledged(hub.send_event("check", "claim-resolve", token=token), "RESOLVED", 2)
    seen = hub.send_event("check", "check-claim")
    holds("the stored answer is replayed", base64.b64decode(seen.json["response"]["body"]).startswith(b"UNB+"), repr(seen))


SCENARIOS = (
    sample_events_of_claims,
    resolved_and_replayed,
    failed_and_taken_over,
    crashed_and_taken_over,
    one_holder_among_forty,
    bad_acts,
    levels_of_one_message,
)


def run(cases, hub, label):
    for scenario in SCENARIOS:
        cases.run(f"{label}: {scenario.__name__.replace('_', ' ')}", scenario, hub)
