"""The servers: real Redis and PostgreSQL, moto for SQS and DynamoDB, cargo-lambda as the Lambda runtime API."""

import hashlib
import json
import os
import pwd
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import boto3
from botocore.config import Config

from procs import Process, base_env, free_port, talks, wait_until

FUNCTIONS = ("check", "cold-writer", "audit", "keeper")
TENANTS = "e2e,tenant42"
REGION = "eu-central-1"
# A message that failed this often moves to the dead-letter queue.
MAX_RECEIVE_COUNT = 2


def program(name):
    found = shutil.which(name)
    if found is None:
        raise RuntimeError(f"{name} is not on PATH; tests/run finds or installs it")
    return found


def beside_python(name):
    """A program of the virtual environment that runs this harness."""
    path = Path(sys.executable).parent / name
    if not path.exists():
        raise RuntimeError(f"{path} does not exist; run this with the virtual environment that tests/run makes")
    return path


class Servers:
    """Started once; every pass over the scenarios gets its own key space in them."""

    def __init__(self, bin_dir):
        self.bin_dir = Path(bin_dir).resolve()
        self.folder = Path(tempfile.mkdtemp(prefix="ledger-e2e-"))
        # PostgreSQL runs as another user and has to reach its own folder below.
        self.folder.chmod(0o755)
        self.processes = []

    def __enter__(self):
        try:
            self._start_redis()
            self._start_postgres()
            self._start_moto()
            self._start_runtime_api()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        for process in reversed(self.processes):
            process.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def run(self, name, argv, **how):
        process = Process(name, argv, self.folder, **how)
        self.processes.append(process)
        return process

    def _start_redis(self):
        self.redis_port = free_port()
        argv = [program("redis-server"), "--port", self.redis_port, "--bind", "127.0.0.1", "--save", "", "--appendonly",
                "no", "--maxmemory-policy", "noeviction", "--dir", self.folder]
        redis = self.run("redis", argv, env=base_env())
        wait_until(lambda: talks(self.redis_port, b"PING\r\n", b"+PONG"), redis)

    def _start_postgres(self):
        # PostgreSQL refuses to run as root.
        user = None
        if os.geteuid() == 0:
            names = {entry.pw_name: entry for entry in pwd.getpwall()}
            user = names.get("postgres") or names["nobody"]
        data = self.folder / "postgres"
        data.mkdir(mode=0o700)
        if user:
            os.chown(data, user.pw_uid, user.pw_gid)
        env = {**base_env(), "HOME": str(data), "LC_ALL": "C"}
        argv = [program("initdb"), "-D", data / "data", "-U", "ledger", "--auth=trust", "-E", "UTF8", "--no-sync"]
        initdb = self.run("initdb", argv, env=env, cwd=data, user=user)
        if initdb.wait(120) != 0:
            raise RuntimeError(f"initdb failed\n{initdb.tail()}")
        self.postgres_port = free_port()
        argv = [program("postgres"), "-D", data / "data", "-h", "127.0.0.1", "-p", self.postgres_port, "-k", data]
        # The data dies with the test; waiting for the disk would prove nothing here.
        postgres = self.run("postgres-server", [*argv, "-c", "fsync=off"], env=env, cwd=data, user=user)
        ready = [program("pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self.postgres_port)]
        wait_until(lambda: subprocess.run(ready, check=False).returncode == 0, postgres)

    def _start_moto(self):
        self.moto_port = free_port()
        argv = [beside_python("moto_server"), "-H", "127.0.0.1", "-p", self.moto_port]
        moto = self.run("moto", argv, env={**base_env(), **self.aws_env()})
        wait_until(lambda: talks(self.moto_port, b"GET /moto-api/ HTTP/1.0\r\n\r\n", b"HTTP/1."), moto)

    def _start_runtime_api(self):
        # cargo-lambda takes the functions' names from a manifest and refuses to be asked for any other.
        manifest = self.folder / "runtime-api"
        manifest.mkdir()
        (manifest / "main.rs").write_text("fn main() {}\n")
        bins = "".join(f'[[bin]]\nname = "{name}"\npath = "main.rs"\n' for name in FUNCTIONS)
        package = '[package]\nname = "runtime-api"\nversion = "0.0.0"\nedition = "2024"\n'
        (manifest / "Cargo.toml").write_text(package + bins)
        self.lambda_port = free_port()
        argv = [beside_python("cargo-lambda"), "lambda", "watch", "--only-lambda-apis", "-A", "127.0.0.1", "-P",
                self.lambda_port]
        api = self.run("runtime-api-server", argv, env=base_env(), cwd=manifest)
        wait_until(lambda: talks(self.lambda_port), api)

    def aws_env(self):
        env = {"AWS_REGION": REGION, "AWS_DEFAULT_REGION": REGION, "AWS_ACCESS_KEY_ID": "test",
               "AWS_SECRET_ACCESS_KEY": "test", "AWS_EC2_METADATA_DISABLED": "true"}
        return {**env, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.moto_port}"}

    def aws(self, service):
        return boto3.client(
            service,
            endpoint_url=f"http://127.0.0.1:{self.moto_port}",
            region_name=REGION,
            aws_access_key_id="test",
            aws_secret_access_key="test",
            config=Config(retries={"max_attempts": 1}, max_pool_connections=50),
        )


class Deployment:
    """One deployment of the ledger: its own Redis database, PostgreSQL database, queues, table and functions."""

    def __init__(self, servers, number, max_concurrency):
        self.servers = servers
        self.number = number
        self.name = f"e2e{number}"
        self.functions = []
        self.sqs = servers.aws("sqs")
        self._create_queues()
        self._create_table()
        self._create_database()
        self.env = {
            **base_env(),
            **servers.aws_env(),
            # No case is about a slow machine: with the limits of production a busy one decides some checks in PostgreSQL, and
            # for seconds two tiers may then both say NEW.
            "REDIS_URL": f"redis://127.0.0.1:{servers.redis_port}/{number}"
                         "?connect_timeout_ms=5000&response_timeout_ms=5000",
            "DATABASE_URL": self.database_url,
            # Read by the keeper alone.
            "MIGRATE_DATABASE_URL": self.database_url,
            "SQS_QUEUE_URL": self.queue_url,
            "SQS_DLQ_URL": self.dlq_url,
            "SQS_PARKED_URL": self.parked_url,
            # moto's counts are exact; those of AWS are so a minute later, and the keeper waits for that three times.
            "SQS_DEPTH_LAG_MS": "0",
            "POLICY_TABLE": self.table,
            "LEDGER_TENANTS": TENANTS,
            "LEDGER_TOKEN_KEYS": hashlib.sha256(self.name.encode()).hexdigest(),
        }
        # Lambda runs several environments of a function side by side; where one takes several requests, fewer do.
        copies = 4 if max_concurrency == 1 else 2
        for function in FUNCTIONS:
            for copy in range(copies if function == "check" else 1):
                self.start(function, max_concurrency, name=f"{self.name}-{function}-{copy}")

    def _create_queues(self):
        create = self.sqs.create_queue
        self.dlq_url = create(QueueName=f"{self.name}-dlq")["QueueUrl"]
        attributes = self.sqs.get_queue_attributes(QueueUrl=self.dlq_url, AttributeNames=["QueueArn"])["Attributes"]
        redrive = {"deadLetterTargetArn": attributes["QueueArn"], "maxReceiveCount": MAX_RECEIVE_COUNT}
        self.queue_url = create(
            QueueName=f"{self.name}-facts", Attributes={"RedrivePolicy": json.dumps(redrive), "VisibilityTimeout": "120"}
        )["QueueUrl"]

        self.parked_url = create(QueueName=f"{self.name}-parked")["QueueUrl"]

    def _create_table(self):
        self.table = f"{self.name}-control"
        self.servers.aws("dynamodb").create_table(
            TableName=self.table,
            BillingMode="PAY_PER_REQUEST",
            AttributeDefinitions=[{"AttributeName": name, "AttributeType": "S"} for name in ("pk", "sk")],
            KeySchema=[{"AttributeName": "pk", "KeyType": "HASH"}, {"AttributeName": "sk", "KeyType": "RANGE"}],
        )

    def _create_database(self):
        port = str(self.servers.postgres_port)
        argv = [program("createdb"), "-h", "127.0.0.1", "-p", port, "-U", "ledger", self.name]
        subprocess.run(argv, check=True, env=base_env())
        self.database_url = f"postgres://ledger@127.0.0.1:{port}/{self.name}?sslmode=disable"

    def flush_redis(self):
        """All that this deployment has in Redis is gone."""
        with socket.create_connection(("127.0.0.1", self.servers.redis_port), timeout=10) as connection:
            connection.sendall(f"SELECT {self.number}\r\nFLUSHDB\r\n".encode())
            said = b""
            while said.count(b"\r\n") < 2:
                said += connection.recv(64)
        if said != b"+OK\r\n+OK\r\n":
            raise RuntimeError(f"Redis said {said!r}")

    def function_env(self, function, max_concurrency):
        return {
            **self.env,
            # With its scheme: the runtime's client does not take a host with a path without one.
            "AWS_LAMBDA_RUNTIME_API": f"http://127.0.0.1:{self.servers.lambda_port}/.rt/{function}",
            "AWS_LAMBDA_FUNCTION_NAME": function,
            "AWS_LAMBDA_FUNCTION_VERSION": "$LATEST",
            "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": "512",
            "AWS_LAMBDA_LOG_GROUP_NAME": f"/aws/lambda/{function}",
            "AWS_LAMBDA_LOG_STREAM_NAME": "e2e",
            "AWS_LAMBDA_MAX_CONCURRENCY": str(max_concurrency),
        }

    def start(self, function, max_concurrency, name, without=()):
        """Starts one environment of a function, leaving out the variables in `without`."""
        env = {key: value for key, value in self.function_env(function, max_concurrency).items() if key not in without}
        process = self.servers.run(name, [self.servers.bin_dir / function], env=env)
        self.functions.append(process)
        return process

    def tails(self):
        return "\n".join(process.tail() for process in self.functions)

    def stop(self):
        for process in self.functions:
            process.stop()
