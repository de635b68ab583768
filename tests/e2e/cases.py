"""Named cases, counted; one that fails does not stop the others."""

import sys
import time
import traceback


class Cases:
    def __init__(self):
        self.passed = 0
        self.failed = 0

    def run(self, name, case, *args):
        """Runs `case(*args)`; returning is passing."""
        began = time.monotonic()
        try:
            case(*args)
        # A failing case may raise anything; Ctrl-C and exits go through.
        except Exception as error:
            self.failed += 1
            print(f"FAILED {name}: {error}", flush=True)
            traceback.print_exc(file=sys.stdout)
        else:
            self.passed += 1
            print(f"ok     {name} ({time.monotonic() - began:.1f} s)", flush=True)


def same(what, got, expected):
    """Fails with both values; `assert` alone would say neither."""
    if got != expected:
        raise AssertionError(f"{what}: expected {expected!r}, got {got!r}")


def holds(what, condition, context=""):
    if not condition:
        raise AssertionError(f"{what} {context}".rstrip())
