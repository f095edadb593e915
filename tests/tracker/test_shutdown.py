"""An interpreter that ends while the tracker is in use: it ends, quietly, with status 0."""

from __future__ import annotations

import subprocess
import sys

import pytest

from kineto_step_tracker import backend
from tests.conftest import repetitions


def run(program: str) -> str:
    """What a program prints, which ends by itself and complains about nothing."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-X", "faulthandler", "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.parametrize("callback", ["brief", "lets others run", "sleeps", "none"])
def test_while_daemon_threads_step(callback: str) -> None:
    body = {"brief": "pass", "lets others run": "time.sleep(0)", "sleeps": "time.sleep(1)"}
    program = f"""
import random, sys, threading, time
from kineto_step_tracker import StepTracker

def on_step(step):
    {body.get(callback, "pass")}

tracker = StepTracker({"None" if callback == "none" else "on_step"})
started = threading.Barrier(5)

def work(name):
    started.wait()
    handle = tracker.requester("handle")
    while True:
        tracker.increment_step(name)
        handle.increment()
        tracker.increment_step("shared")
        tracker.erase_step_count("shared")

sys.setswitchinterval(1e-5)
for number in range(4):
    threading.Thread(target=work, args=(f"r{{number}}",), daemon=True).start()
started.wait()
time.sleep(2e-3 * random.random())
"""
    for _ in range(repetitions(8, portable=4)):
        assert run(program) == ""


def test_what_runs_at_exit_may_count() -> None:
    program = """
import atexit
from kineto_step_tracker import StepTracker

tracker = StepTracker(print)
handle = tracker.requester("handle")
atexit.register(handle.increment)
atexit.register(tracker.increment_step, "at exit")
"""
    assert run(program) == "1\n"


@pytest.mark.skipif(
    backend == "portable",
    reason="atomics frees the memory of what a module leaves behind before finalisers run",
)
def test_finalisers_of_what_is_left_in_modules_may_count() -> None:
    """They run when most of the interpreter is gone; those left in ``sys`` itself, too late."""
    program = """
import builtins, json, os
from kineto_step_tracker import KinetoStepTracker, StepTracker

def on_step(step, write=os.write):
    write(1, f"{step} ".encode())

tracker = StepTracker(on_step)

class Late:
    def __init__(self):
        self.tracker = tracker
        self.handle = tracker.requester("handle")
        self.process_wide = KinetoStepTracker.increment_step

    def __del__(self):
        self.tracker.increment_step("late")
        self.handle.increment()
        self.process_wide("late")
        self.tracker.init_step_count("other")
        self.tracker.erase_step_count("late")
        self.tracker.step_counts()
        self.tracker.requester("made late").increment()

here = Late()
cycle = Late()
cycle.itself = cycle
json.late = Late()
builtins.late = Late()
"""
    # Each raises the step once, with "late", and the first once more, with "made late".
    assert run(program).split() == ["1", "2", "3", "4", "5"]
