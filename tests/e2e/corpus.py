"""Real EDI messages through the whole ledger: checked twice, drained, and found again by audit.

`$LEDGER_CORPUS/checks.jsonl` has one message per line: channel, sender, receiver, key (as the standard names it) and
payloadSha256. Messages without a sender, receiver or key are in it on purpose and have to be refused.
"""

import json
from pathlib import Path

from cases import holds, same

PART_NAMES = ("sender", "receiver", "key")


class Message:
    """One identity of the corpus and the hashes of its lines, in their order."""

    def __init__(self, scope, parts):
        self.scope = scope
        self.parts = list(parts)
        self.hashes = []
        self.sightings = 0


class Corpus:
    def __init__(self, hub, folder):
        self.hub = hub
        lines = (Path(folder) / "checks.jsonl").read_text().splitlines()
        self.rows = [json.loads(line) for line in lines if line]
        self.messages = {}

    def _checks(self):
        """Each line that names a message: its identity and its hash."""
        for row in self.rows:
            parts = tuple(row[name] for name in PART_NAMES)
            if all(parts):
                scope = f"e2e:{row['channel']}"
                message = self.messages.setdefault((scope, parts), Message(scope, parts))
                yield message, row["payloadSha256"]

    def _sees(self, message, payload_sha256):
        """Checks a line and compares the answer with what came before it."""
        if not message.hashes:
            message.hashes.append(payload_sha256)
        answer = self.hub.check_hash(message.scope, payload_sha256, keyParts=message.parts, sourceService="e2e-corpus")
        what = f"{message.scope} {message.parts}"
        same(f"{what}: status code of {answer}", answer.status, 200)
        verdict = answer.json
        if message.sightings == 0:
            same(f"{what}: first", (verdict["status"], verdict["disposition"]), ("NEW", "PROCESS"))
        else:
            same(f"{what}: again", (verdict["status"], verdict["disposition"]), ("SEEN", "DISCARD"))
            same(f"{what}: payloadHashDrift", verdict["payloadHashDrift"], payload_sha256 != message.hashes[0])
        same(f"{what}: retryCount", verdict["retryCount"], message.sightings)
        message.sightings += 1

    def first_pass(self):
        for message, payload_sha256 in self._checks():
            self._sees(message, payload_sha256)
        holds("the corpus has repeats", any(message.sightings > 1 for message in self.messages.values()))

    def second_pass(self):
        for message, payload_sha256 in self._checks():
            holds(f"{message.scope} {message.parts} was seen in the first pass", message.sightings > 0)
            self._sees(message, payload_sha256)

    def nameless_messages_are_refused(self):
        refused = 0
        for row in self.rows:
            parts = [row[name] for name in PART_NAMES]
            if all(parts):
                continue
            answer = self.hub.check_hash(f"e2e:{row['channel']}", row["payloadSha256"], keyParts=parts)
            same(f"{row['file']}: status code of {answer}", answer.status, 400)
            field = f"keyParts[{parts.index('')}]"
            holds(f"{row['file']}: the problem names {field}", field in json.dumps(answer.json), repr(answer))
            refused += 1
        holds("the corpus has messages without a sender, receiver or key", refused > 0)

    def audit_finds_each_by_key(self):
        for message in self.messages.values():
            query = [("scope", message.scope), *(("keyPart", part) for part in message.parts)]
            found, _ = self.hub.messages(query)
            what = f"{message.scope} {message.parts}"
            same(f"{what}: registrations found by key", len(found), 1)
            self._compare(what, found[0], message)

    def audit_finds_each_by_hash(self):
        """By hash audit reads PostgreSQL only, so this proves what was drained."""
        self.hub.drain_until(self._all_found_by_hash)

    def _all_found_by_hash(self):
        for message in self.messages.values():
            found, page = self.hub.messages([("tenant", "e2e"), ("payloadSha256", message.hashes[0])])
            holds("the page says up to when facts are drained", "asOf" in page, repr(page))
            # One file may hold several messages, all with its hash.
            mine = [row for row in found if row["scope"] == message.scope and row.get("keyParts") == message.parts]
            what = f"{message.scope} {message.parts}"
            same(f"{what}: registrations found by hash", len(mine), 1)
            self._compare(what, mine[0], message)

    def _compare(self, what, row, message):
        same(f"{what}: scope", row["scope"], message.scope)
        same(f"{what}: keyParts", row.get("keyParts"), message.parts)
        same(f"{what}: payloadSha256", row["payloadSha256"], message.hashes[0])
        same(f"{what}: sourceService", row["sourceService"], "e2e-corpus")
        same(f"{what}: retryCount", row["retryCount"], message.sightings - 1)
        same(f"{what}: state", row["state"], "REGISTERED")


def run(cases, hub, folder, label):
    corpus = Corpus(hub, folder)
    steps = (
        corpus.first_pass,
        corpus.nameless_messages_are_refused,
        corpus.second_pass,
        corpus.audit_finds_each_by_hash,
        corpus.audit_finds_each_by_key,
    )
    for step in steps:
        cases.run(f"{label}: corpus: {step.__name__.replace('_', ' ')}", step)
