"""Subinterpreters: a second one either works or refuses the import in plain words."""

from __future__ import annotations

import subprocess
import sys

import pytest

from kineto_step_tracker import backend

# In a process of its own, since what must not happen is a crash.
PROGRAM = """
import sys
import kineto_step_tracker

isolated = sys.argv[1] == "isolated"
counts = '''
from kineto_step_tracker import StepTracker
steps = []
tracker = StepTracker(steps.append)
for _ in range(3):
    tracker.increment_step("a")
assert tracker.erase_step_count("a") is True
assert steps == [1, 2, 3]
print("counted", flush=True)
'''
try:
    import _interpreters
except ImportError:
    import _xxsubinterpreters

    other = _xxsubinterpreters.create(isolated=isolated)
    try:
        _xxsubinterpreters.run_string(other, counts)
    except _xxsubinterpreters.RunFailedError as error:
        print(error)
    _xxsubinterpreters.destroy(other)
else:
    other = _interpreters.create("isolated" if isolated else "legacy")
    failure = _interpreters.exec(other, counts)
    if failure is not None:
        print(failure.formatted)
    _interpreters.destroy(other)

tracker = kineto_step_tracker.StepTracker()
assert tracker.increment_step("a") == 1, "the first interpreter's goes on"
"""
MODULE = "_interpreters" if sys.version_info >= (3, 13) else "_xxsubinterpreters"


@pytest.mark.parametrize("kind", ["isolated", "sharing the GIL"])
def test_a_subinterpreter_counts_or_is_told_that_it_cannot(kind: str) -> None:
    pytest.importorskip(MODULE, reason=f"this Python was built without {MODULE}")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, kind], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    refused = "ImportError" in done.stdout and (
        "does not support loading in subinterpreters" in done.stdout
        or "can only be loaded into one interpreter per process" in done.stdout
    )
    counted = done.stdout == "counted\n"
    if backend == "native":
        assert refused, done.stdout
    elif kind == "isolated" and sys.version_info >= (3, 12):
        # With a GIL of its own it cannot load what atomics is built on, ctypes and cffi.
        assert counted or refused, done.stdout
    else:
        assert counted, done.stdout
