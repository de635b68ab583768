"""Child processes that never outlive the harness, free ports, and waiting for a server to answer."""

import ctypes
import os
import signal
import socket
import subprocess
import time
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)


def _die_with_parent():
    """Runs in the child: the kernel kills it when the harness is gone, however the harness ends."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Process:
    """A child with its output in a file."""

    def __init__(self, name, argv, folder, env=None, cwd=None, user=None):
        self.name = name
        self.log = Path(folder) / f"{name}.log"
        account = {} if user is None else {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
        with self.log.open("ab") as out:
            self._child = subprocess.Popen(
                [str(arg) for arg in argv],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=env,
                cwd=cwd,
                preexec_fn=_die_with_parent,
                **account,
            )

    def exit_code(self):
        """The exit code, or None while it runs."""
        return self._child.poll()

    def wait(self, timeout_s):
        """The exit code, or None where it still runs after `timeout_s`."""
        try:
            return self._child.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def tail(self, lines=25):
        text = self.log.read_text(errors="replace").splitlines()
        return "\n".join(f"    {self.name}| {line}" for line in text[-lines:])

    def stop(self):
        self._child.kill()
        self._child.wait()


def wait_until(answers, process, timeout_s=60):
    """Returns once `answers()` is true; fails loudly where the process ends or stays silent."""
    deadline = time.monotonic() + timeout_s
    while not answers():
        if process.exit_code() is not None:
            raise RuntimeError(f"{process.name} ended with {process.exit_code()}\n{process.tail()}")
        if time.monotonic() > deadline:
            raise RuntimeError(f"{process.name} did not answer within {timeout_s} s\n{process.tail()}")
        time.sleep(0.05)


def talks(port, send=b"", expect=b""):
    """Whether 127.0.0.1:`port` accepts a connection and, where asked, answers `send` with what begins with `expect`."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=2) as s:
            if send:
                s.sendall(send)
                return s.recv(len(expect)) == expect
            return True
    except OSError:
        return False


def base_env():
    """The environment that programs need to run at all; settings of the caller's own ledger or AWS account stay out."""
    keep = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "CARGO_HOME", "RUSTUP_HOME", "RUSTUP_TOOLCHAIN", "RUST_LOG")
    return {name: os.environ[name] for name in keep if name in os.environ}
