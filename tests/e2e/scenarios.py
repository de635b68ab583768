"""What has to hold of the deployed functions, whatever the messages."""

import hashlib
import json
import time
from concurrent.futures import ThreadPoolExecutor

from cases import holds, same
from hub import event

HASH = hashlib.sha256(b"payload").hexdigest()
CHECK = {"scope": "e2e:bad", "key": "k", "payloadSha256": HASH}


def without(*names):
    return {name: value for name, value in CHECK.items() if name not in names}


# name, body (JSON or text), status, what the problem has to name
BAD_CHECKS = (
    ("not JSON", "{", 400, ""),
    ("an unknown field", {**CHECK, "ttl": 1}, 400, "ttl"),
    ("no key", without("key"), 400, "key"),
    ("a key and keyParts", {**CHECK, "keyParts": ["a", "b"]}, 400, "key"),
    ("a key with a line feed", {**CHECK, "key": "a\nb"}, 400, "key"),
    ("a key of 1,025 bytes", {**CHECK, "key": "k" * 1025}, 400, "key"),
    ("one key part", {**without("key"), "keyParts": ["a"]}, 400, "keyParts"),
    ("an empty key part", {**without("key"), "keyParts": ["a", ""]}, 400, "keyParts[1]"),
    ("a hash of 63 digits", {**CHECK, "payloadSha256": HASH[1:]}, 400, "payloadSha256"),
    ("a window of no time", {**CHECK, "ttlSeconds": 0}, 400, "ttlSeconds"),
    ("a window of 367 days", {**CHECK, "ttlSeconds": 367 * 86_400}, 400, "ttlSeconds"),
    ("a scope without a tenant", {**CHECK, "scope": "bad"}, 400, "scope"),
    ("a tenant in capitals", {**CHECK, "scope": "E2E:bad"}, 400, "scope"),
    ("a tenant that this deployment does not serve", {**CHECK, "scope": "stranger:bad"}, 403, ""),
    ("a body over 1 MiB", {**CHECK, "key": "k" * (1 << 20)}, 413, ""),
)


def is_problem(answer, status, names):
    same(f"status code of {answer}", answer.status, status)
    holds("it is a problem", answer.headers.get("content-type", "").startswith("application/problem+json"),
          f"{answer.headers}")
    holds("it has a stable type", answer.json["type"].startswith("urn:dedup-ledger:problem:"), repr(answer))
    same("status in the problem", answer.json["status"], status)
    holds(f"the problem names {names!r}", names in json.dumps(answer.json), repr(answer))


def sample_events(hub):
    """events/*.json as they are, in the order in which they make sense."""
    first = hub.send_event("check", "check-iam")
    same(f"check-iam: {first}", (first.status, first.json["status"]), (200, "NEW"))
    again = hub.send_event("check", "check-iam")
    same(f"check-iam again, with its requestId: {again}", (again.json["status"], again.json["replayed"]), ("NEW", True))
    same("a retry is answered with the same time", again.json["firstSeenAt"], first.json["firstSeenAt"])

    first = hub.send_event("check", "check-jwt")
    same(f"check-jwt: {first}", (first.status, first.json["status"]), (200, "NEW"))
    again = hub.send_event("check", "check-jwt")
    same(f"check-jwt again, without one: {again}", (again.json["status"], again.json["retryCount"]), ("SEEN", 1))
    same("the hash in capitals is the same hash", again.json["payloadHashDrift"], False)

    results = hub.send_event("check", "check-batch").json["results"]
    same(f"check-batch: {results}", [result.get("status") for result in results], ["NEW", "NEW", "SEEN", 400])
    same("a repeat with another hash drifts", results[2]["payloadHashDrift"], True)

    records = facts_of_today(event("cold-writer-sqs")["Records"])
    bad = [record["messageId"] for record in records if is_of_another_release(record["body"])]
    same("cold-writer-sqs: given back", sorted(hub.write_cold(records)), sorted(bad))
    same("and parked", len(hub.parked()), 1)

    hub.drain()
    by_key = hub.send_event("audit", "audit-by-key")
    same(f"audit-by-key: {by_key}", [row["retryCount"] for row in by_key.json["messages"]], [1])
    by_hash = hub.send_event("audit", "audit-by-hash")
    same(f"audit-by-hash: {by_hash}", [row["sourceService"] for row in by_hash.json["messages"]], ["as4-ingest"])
    found, _ = hub.messages([("scope", "tenant42:x12"), *(("keyPart", part) for part in
                             ("ZZ", "SENDER", "ZZ", "RECEIVER", "000000911"))])
    same("two facts of one registration are one message", [row["retryCount"] for row in found], [2])


def is_known_fact(body):
    try:
        return json.loads(body)["v"] == 1
    except ValueError:
        return False


def is_of_another_release(body):
    try:
        return json.loads(body)["v"] > 2
    except ValueError:
        return False


def facts_of_today(records):
    """The records with the facts' times moved to now: a fact is at most 14 days old, the file gets older."""
    moved = []
    for record in records:
        if is_known_fact(record["body"]):
            fact = json.loads(record["body"])
            forward_ms = int(time.time() * 1000) - 300_000 - fact["firstSeenAtMs"]
            body = json.dumps(shifted(fact, forward_ms))
            record = {**record, "body": body, "md5OfBody": hashlib.md5(body.encode()).hexdigest()}
        moved.append(record)
    return moved


def shifted(value, forward_ms):
    return {
        name: shifted(inner, forward_ms) if isinstance(inner, dict)
        else inner + forward_ms if name.endswith("AtMs") else inner
        for name, inner in value.items()
    }


def bad_inputs(hub):
    for name, body, status, names in BAD_CHECKS:
        try:
            is_problem(hub.http("check", "POST", "/v1/check", body), status, names)
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from error
    is_problem(hub.batch([CHECK] * 101), 400, "items")
    unknown_caller = hub.http("check", "POST", "/v1/check", CHECK, authorizer=None)
    holds("a caller whom the gateway does not name is refused", unknown_caller.status in (401, 403), repr(unknown_caller))
    is_problem(hub.http("audit", "GET", "/v1/messages", query=[("scope", "e2e:bad")]), 400, "key")
    is_problem(hub.http("audit", "GET", "/v1/messages", query=[("tenant", "e2e"), ("payloadSha256", "x")]), 400,
               "payloadSha256")
    same("nothing of it was registered", hub.http("check", "POST", "/v1/check", CHECK).json["status"], "NEW")


def new_then_seen(hub):
    first = hub.check("e2e:once", "a", key="one", sourceService="as4-ingest")
    same(f"first: {first}", (first.json["status"], first.json["disposition"]), ("NEW", "PROCESS"))
    same("first: retryCount", first.json["retryCount"], 0)
    second = hub.check("e2e:once", "b", key="one", sourceService="edifact")
    same(f"second: {second}", (second.json["status"], second.json["disposition"]), ("SEEN", "DISCARD"))
    same("second: retryCount", second.json["retryCount"], 1)
    same("second: payloadHashDrift", second.json["payloadHashDrift"], True)
    same("second: firstSourceService", second.json["firstSourceService"], "as4-ingest")
    same("second: firstSeenAt", second.json["firstSeenAt"], first.json["firstSeenAt"])
    same("a scope of its own", hub.check("e2e:twice", "a", key="one").json["status"], "NEW")


def repeats_reach_history(hub):
    """History counts the repeats, also those whose hash drifted, and keeps the first hash."""
    first = hashlib.sha256(b"counted").hexdigest()
    for payload in ("counted", "counted", "counted, changed"):
        hub.check("e2e:history", payload, key="counted")

    def in_history():
        found, _ = hub.messages([("tenant", "e2e"), ("payloadSha256", first)])
        same("history", [(row["key"], row["retryCount"]) for row in found], [("counted", 2)])

    hub.drain_until(in_history)


def one_new_among_forty(hub):
    """A check that waited too long for the winner's answer is told 503, never SEEN nor NEW, and asks again."""
    with ThreadPoolExecutor(40) as pool:
        answers = list(pool.map(lambda _: hub.check("e2e:race", "a", key="contended"), range(40)))
    holds("every answer is a verdict or 503", all(a.status in (200, 503) for a in answers), f"{answers}")
    verdicts = [answer.json["status"] for answer in answers if answer.status == 200]
    same("NEW among 40 checks at once", verdicts.count("NEW"), 1)
    same("the others", set(verdicts), {"NEW", "SEEN"})
    same("afterwards", hub.check("e2e:race", "a", key="contended").json["status"], "SEEN")


def batch_of_a_hundred(hub):
    items = [{**CHECK, "scope": "e2e:batch", "key": f"b{n % 60}"} for n in range(100)]
    results = hub.batch(items).json["results"]
    same("statuses", [result["status"] for result in results], ["NEW"] * 60 + ["SEEN"] * 40)
    results = hub.batch(items).json["results"]
    same("statuses again", [result["status"] for result in results], ["SEEN"] * 100)
    same("counts", [result["retryCount"] for result in results],
         [2 if n < 40 else 1 for n in range(60)] + [3] * 40)


def bad_messages_fail_alone(hub):
    """Text that is no fact is parked with the reason. A fact of another release is given back by name, again and again, and ends
    in the dead-letter queue. Facts beside them do not suffer."""
    hub.drain()
    hub.dead_letters()
    hub.parked()
    fact = {**json.loads(event("cold-writer-sqs")["Records"][0]["body"]), "v": 999}
    hub.send_raw("not JSON")
    newer = hub.send_raw(json.dumps(fact))
    same("beside them", hub.check("e2e:beside", "beside them", key="good").json["status"], "NEW")
    given_back = hub.drain()
    same("given back", {record["messageId"] for record in given_back}, {newer})
    same("dead letters", hub.dead_letters(), [json.dumps(fact)])
    [(body, reason)] = hub.parked()
    same("parked", body, "not JSON")
    holds("with the reason", reason.startswith("not a fact"), reason)
    found, _ = hub.messages([("tenant", "e2e"), ("payloadSha256", hashlib.sha256(b"beside them").hexdigest())])
    same("the fact beside them", [row["scope"] for row in found], ["e2e:beside"])


def health(hub):
    answer = hub.http("check", "GET", "/v1/health")
    same(f"health: {answer}", answer.status, 200)


def start_needs_tenants_and_token_keys(deployment):
    for function, variable in (("check", "LEDGER_TENANTS"), ("audit", "LEDGER_TENANTS"), ("check", "LEDGER_TOKEN_KEYS")):
        name = f"{deployment.name}-{function}-without-{variable.lower()}"
        process = deployment.start(function, 1, name, without=(variable,))
        code = process.wait(20)
        holds(f"{function} without {variable} does not start", code not in (None, 0), f"(exit {code})")
        holds(f"{function} says why", variable in process.log.read_text(errors="replace"), process.tail())


SCENARIOS = (
    sample_events,
    new_then_seen,
    repeats_reach_history,
    bad_inputs,
    one_new_among_forty,
    batch_of_a_hundred,
    bad_messages_fail_alone,
    health,
)


def run(cases, hub, deployment, label):
    for scenario in SCENARIOS:
        cases.run(f"{label}: {scenario.__name__.replace('_', ' ')}", scenario, hub)
    cases.run(f"{label}: start needs tenants and token keys", start_needs_tenants_and_token_keys, deployment)
