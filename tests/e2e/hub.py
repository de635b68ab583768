"""The ledger as the hub and AWS see it: gateway requests to check and audit, SQS batches to cold-writer."""

import base64
import copy
import hashlib
import json
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

EVENTS = Path(__file__).resolve().parents[2] / "events"
INVOKE_TIMEOUT_S = 60
# What Lambda hands over at once by default.
SQS_BATCH = 10


def event(name):
    return json.loads((EVENTS / f"{name}.json").read_text())


class Answer:
    """What a function answered to a gateway event."""

    def __init__(self, raw):
        self.status = raw["statusCode"]
        self.headers = {name.lower(): value for name, value in (raw.get("headers") or {}).items()}
        for name, values in (raw.get("multiValueHeaders") or {}).items():
            self.headers.setdefault(name.lower(), ",".join(values))
        body = raw.get("body") or ""
        text = base64.b64decode(body).decode() if raw.get("isBase64Encoded") else body
        try:
            self.json = json.loads(text)
        except ValueError as error:
            raise AssertionError(f"status {self.status} with a body that is not JSON: {text!r}") from error

    def __repr__(self):
        return f"{self.status} {json.dumps(self.json)}"


class Hub:
    def __init__(self, deployment):
        self._deployment = deployment
        self._sqs = deployment.sqs
        self._lambda = f"http://127.0.0.1:{deployment.servers.lambda_port}/2015-03-31/functions"
        self._gateway_event = event("check-iam")

    def invoke(self, function, payload):
        """Invokes a function as AWS does: JSON in, JSON out. A function error is a failure."""
        request = urllib.request.Request(f"{self._lambda}/{function}/invocations", data=json.dumps(payload).encode())
        try:
            with urllib.request.urlopen(request, timeout=INVOKE_TIMEOUT_S) as response:
                return json.loads(response.read())
        except urllib.error.HTTPError as error:
            said = error.read().decode(errors="replace")
            raise AssertionError(f"{function} failed the invocation: {error.code} {said}") from error
        except TimeoutError as error:
            raise AssertionError(f"{function} gave no answer\n{self._deployment.tails()}") from error

    def http(self, function, method, path, body=None, query=(), authorizer="iam"):
        """A request through the gateway. `body` is text, or anything JSON; `query` is pairs, names may repeat."""
        gateway = copy.deepcopy(self._gateway_event)
        gateway.update(routeKey=f"{method} {path}", rawPath=path, rawQueryString=urllib.parse.urlencode(query))
        context = gateway["requestContext"]
        context.update(routeKey=f"{method} {path}")
        context["http"].update(method=method, path=path)
        if authorizer is None:
            del context["authorizer"]
        joined = {}
        for name, value in query:
            joined[name] = f"{joined[name]},{value}" if name in joined else value
        if joined:
            gateway["queryStringParameters"] = joined
        del gateway["body"]
        if body is not None:
            gateway["body"] = body if isinstance(body, str) else json.dumps(body)
            gateway["headers"]["content-length"] = str(len(gateway["body"].encode()))
        return Answer(self.invoke(function, gateway))

    def send_event(self, function, name, **fields):
        """An event file, as it is; `fields` take the place of fields in its body."""
        gateway = event(name)
        if fields:
            gateway["body"] = json.dumps({**json.loads(gateway["body"]), **fields})
        return Answer(self.invoke(function, gateway))

    def check(self, scope, payload, **fields):
        """One check of a payload (text); `fields` are the request's others, key or keyParts among them."""
        return self.check_hash(scope, hashlib.sha256(payload.encode()).hexdigest(), **fields)

    def check_hash(self, scope, payload_sha256, **fields):
        body = {"scope": scope, "payloadSha256": payload_sha256, **fields}
        return self.http("check", "POST", "/v1/check", body)

    def claim(self, scope, payload, lease_s=60, **fields):
        """One check in claim mode."""
        return self.check(scope, payload, claim={"leaseSeconds": lease_s}, **fields)

    def act(self, name, scope, token, **fields):
        """What a claim's holder says: resolve, fail or renew; `fields` as for a check."""
        return self.http("check", "POST", f"/v1/claims/{name}", {"scope": scope, "token": token, **fields})

    def batch(self, items, **fields):
        return self.http("check", "POST", "/v1/check/batch", {"items": items, **fields})

    def messages(self, query):
        """Every message that audit finds, over all its pages, and the last page."""
        query, found = list(query), []
        while True:
            answer = self.http("audit", "GET", "/v1/messages", query=query)
            if answer.status != 200:
                raise AssertionError(f"audit answered {answer} to {query}")
            found += answer.json["messages"]
            following = answer.json["next"]
            if following is None:
                return found, answer.json
            query = [pair for pair in query if pair[0] != "next"] + [("next", following)]

    def write_cold(self, records):
        """One SQS event to cold-writer; the ids of the messages that it gave back."""
        answer = self.invoke("cold-writer", {"Records": records})
        return [failure["itemIdentifier"] for failure in answer["batchItemFailures"]]

    def receive(self, queue_url, wait_s=0):
        """Messages of a queue as the records of an SQS event."""
        received = self._sqs.receive_message(
            QueueUrl=queue_url, MaxNumberOfMessages=SQS_BATCH, WaitTimeSeconds=wait_s, AttributeNames=["All"]
        )
        return [
            {
                "messageId": message["MessageId"],
                "receiptHandle": message["ReceiptHandle"],
                "body": message["Body"],
                "attributes": message["Attributes"],
                "messageAttributes": {},
                "md5OfBody": message["MD5OfBody"],
                "eventSource": "aws:sqs",
                "eventSourceARN": f"arn:aws:sqs:eu-central-1:123456789012:{queue_url.rsplit('/', 1)[1]}",
                "awsRegion": "eu-central-1",
            }
            for message in received.get("Messages", [])
        ]

    def settle(self, records, failed):
        """What the event source does after an invocation: deletes what succeeded, gives back the rest."""
        queue_url = self._deployment.queue_url
        for record in records:
            if record["messageId"] in failed:
                self._sqs.change_message_visibility(
                    QueueUrl=queue_url, ReceiptHandle=record["receiptHandle"], VisibilityTimeout=0
                )
            else:
                self._sqs.delete_message(QueueUrl=queue_url, ReceiptHandle=record["receiptHandle"])

    def drain(self):
        """Hands the queue to cold-writer until it is empty; the records that were given back, each time they were."""
        given_back = []
        while records := self.receive(self._deployment.queue_url):
            failed = set(self.write_cold(records))
            unknown = failed - {record["messageId"] for record in records}
            if unknown:
                raise AssertionError(f"cold-writer gave back ids that it was never given: {unknown}")
            self.settle(records, failed)
            given_back += [record for record in records if record["messageId"] in failed]
        return given_back

    def drain_until(self, done, timeout_s=30):
        """Drains until `done()` is true: a repeat's fact follows its answer, nobody waits for it. A last call of `done`
        tells why where time ran out."""
        deadline = time.monotonic() + timeout_s
        while True:
            self.drain()
            try:
                return done()
            except AssertionError:
                if time.monotonic() > deadline:
                    raise
            time.sleep(0.2)

    def send_raw(self, body):
        """Puts a text on the queue, as nobody should."""
        sent = self._sqs.send_message(QueueUrl=self._deployment.queue_url, MessageBody=body)
        return sent["MessageId"]

    def dead_letters(self):
        """The bodies in the dead-letter queue; they are taken out."""
        bodies = []
        while records := self.receive(self._deployment.dlq_url):
            for record in records:
                self._sqs.delete_message(QueueUrl=self._deployment.dlq_url, ReceiptHandle=record["receiptHandle"])
            bodies += [record["body"] for record in records]
        return bodies

    def parked(self):
        """The parked messages, each with its reason; they are taken out."""
        found = []
        queue_url = self._deployment.parked_url
        while messages := self._sqs.receive_message(
            QueueUrl=queue_url, MaxNumberOfMessages=SQS_BATCH, MessageAttributeNames=["All"]
        ).get("Messages"):
            for message in messages:
                self._sqs.delete_message(QueueUrl=queue_url, ReceiptHandle=message["ReceiptHandle"])
                found.append((message["Body"], message["MessageAttributes"]["reason"]["StringValue"]))
        return found
