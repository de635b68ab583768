"""The ledger end to end: the function binaries under a Lambda runtime API, on real Redis and PostgreSQL, with moto in
place of SQS and DynamoDB.

    .tools/venv/bin/python tests/e2e --bin-dir target/debug

tests/run makes the virtual environment, finds the servers and builds the binaries. `LEDGER_CORPUS` names a folder of
sample messages (corpus.py). Everything runs twice, with one and with four requests at a time in a function.
"""

import argparse
import os
import sys

import claims
import corpus
import keeper
import scenarios
from cases import Cases
from hub import Hub
from stack import Deployment, Servers


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin-dir", required=True, help="folder of check, cold-writer, audit and keeper")
    parser.add_argument("--logs", action="store_true", help="print the end of every log where a case failed")
    args = parser.parse_args()
    folder = os.environ.get("LEDGER_CORPUS")
    if not folder:
        print("not made: the corpus cases; LEDGER_CORPUS names no folder of sample messages")

    cases = Cases()
    with Servers(args.bin_dir) as servers:
        for number, max_concurrency in enumerate((1, 4), start=1):
            label = f"max concurrency {max_concurrency}"
            deployment = Deployment(servers, number, max_concurrency)
            failed_before = cases.failed
            hub = Hub(deployment)
            keeper.deploy(cases, hub, label)
            scenarios.run(cases, hub, deployment, label)
            claims.run(cases, hub, label)
            if folder:
                corpus.run(cases, hub, folder, label)
            keeper.run(cases, hub, deployment, label)
            if args.logs and cases.failed > failed_before:
                print(deployment.tails())
            deployment.stop()
    print(f"e2e: {cases.passed} passed, {cases.failed} failed")
    print(f"{cases.passed} passed, {cases.failed} failed")
    return 1 if cases.failed or not cases.passed else 0


if __name__ == "__main__":
    sys.exit(main())
