"""Contract point 8: after a fork at any moment the child's tracker works, with its counts."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
import traceback
from collections.abc import Callable

import pytest

from kineto_step_tracker import StepTracker
from tests.conftest import repetitions

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork"),
    # Forking a process that has threads is what these tests are about.
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning"),
]


def fork(check: Callable[[], None]) -> int:
    """Fork, run a check in the child, and return the child's number to the parent."""
    child = os.fork()
    if child == 0:
        signal.alarm(20)  # its default action ends a child that hangs
        status = 1
        try:
            check()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    return child


def assert_passed(child: int) -> None:
    """Fail if the check raised in the child, or hung there."""
    assert os.waitpid(child, 0)[1] == 0


def in_child(check: Callable[[], None]) -> None:
    assert_passed(fork(check))


def test_while_other_threads_step_and_one_is_in_the_callback() -> None:
    stop, stepping = threading.Event(), threading.Event()
    entered, leave = threading.Event(), threading.Event()
    steps: list[int] = []

    def on_step(step: int) -> None:
        steps.append(step)
        if step == 1:
            entered.set()
            leave.wait(60)

    tracker = StepTracker(on_step)

    def work(name: str) -> None:
        while not stop.is_set():
            # Or each child has millions of steps to run for the holder that it has lost.
            stepping.wait()
            for _ in range(repetitions(200)):
                tracker.increment_step(name)
                tracker.erase_step_count("shared")
                tracker.increment_step("shared")

    threads = [threading.Thread(target=tracker.increment_step, args=("holder",))]
    threads += [threading.Thread(target=work, args=(f"r{number}",)) for number in range(3)]
    threads[0].start()
    assert entered.wait(60)
    for thread in threads[1:]:
        thread.start()

    def check() -> None:
        before = tracker.current_step()
        assert tracker.step_counts()["holder"] == 1
        assert tracker.increment_step("child") >= before + 1
        assert steps == list(range(1, tracker.current_step() + 1)), "the dead holder's are run"
        tracker.init_step_count("shared")
        assert tracker.erase_step_count("shared") is True

    try:
        for _ in range(20):
            stepping.set()
            time.sleep(1e-3 * random.random())  # any moment will do
            child = fork(check)
            stepping.clear()
            assert_passed(child)
    finally:
        leave.set()
        stop.set()
        stepping.set()
        for thread in threads:
            thread.join()
    assert steps == list(range(1, tracker.current_step() + 1))


def test_inside_the_callback() -> None:
    """The child is in the callback too: it holds the baton and runs the steps behind it."""
    steps: list[int] = []
    children: list[int] = []

    def on_step(step: int) -> None:
        steps.append(step)
        if step == 1:
            children.append(os.fork())
            tracker.increment_step("a")
            assert steps == [1], "the callback does not run inside itself"

    tracker = StepTracker(on_step)

    def fork_in_callback() -> None:
        tracker.increment_step("a")
        assert steps == [1, 2]
        assert tracker.increment_step("a") == 3
        if children[0] != 0:
            assert os.waitpid(children[0], 0)[1] == 0

    # In a child, so that the one forked inside the callback ends as one, whatever it does.
    in_child(fork_in_callback)


def test_counts_and_handles_go_along() -> None:
    tracker = StepTracker(start=5)
    handle = tracker.requester("a")
    handle.increment()

    def check() -> None:
        assert (tracker.current_step(), tracker.step_counts()) == (6, {"a": 6})
        assert handle.increment() == 7

    in_child(check)
    assert handle.count == 6, "the child counts for itself"
