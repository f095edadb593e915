"""Contract point 8: after a fork at any moment the child's tracker works, with its counts."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import sys
import threading
import time
import traceback
from array import array
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from kineto_step_tracker import StepTracker, _atomic, backend
from tests.conftest import repetitions, run_together

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


class HeldCallback:
    """Sits in the callback of every 16th step until it is let go, in the parent only."""

    EVERY = 16

    def __init__(self, start: int) -> None:
        self.parent = os.getpid()
        self.steps = array("q", [start])
        self.entered, self.leave = threading.Event(), threading.Event()
        self.holding = True
        # As far as threads may raise the step: a child runs what its lost holder has left.
        self.limit = array("q", [start + self.EVERY])

    def __call__(self, step: int) -> None:
        self.steps.append(step)
        if step % self.EVERY == 0 and self.holding and os.getpid() == self.parent:
            self.entered.set()
            self.leave.wait()
            self.leave.clear()
            self.limit[0] = step + self.EVERY


# Nothing here is a closure and each thread has a place of its own to count in: on free-threaded
# Python, objects that threads contend for have locks, which in a child may never be freed.


def step_until_the_end(
    tracker: StepTracker, held: HeldCallback, stepping: threading.Event, name: str, own: array[int]
) -> None:
    while held.holding:
        stepping.wait()
        tracker.increment_step(name)
        own[0] += 1
        if tracker.current_step() < held.limit[0]:
            tracker.erase_step_count("shared")
            tracker.increment_step("shared")


def check_in_child(
    tracker: StepTracker, held: HeldCallback, counted: dict[str, array[int]]
) -> None:
    assert held.steps[-1] % held.EVERY == 0, "one was in the callback"
    counts = tracker.step_counts()
    for name, own in counted.items():
        assert own[0] <= counts[name] <= own[0] + 1
    before = tracker.current_step()
    assert tracker.increment_step("child") == before + 1
    tracker.init_step_count("shared")
    assert tracker.erase_step_count("shared") is True
    assert tracker.increment_step("shared") == before + 2
    recent = held.steps[-held.EVERY :].tolist()
    assert recent == list(range(recent[0], before + 3))


def forks(number: int) -> int:
    """Where PyTorch is loaded one takes ten times as long: fewer of them, since others run all."""
    return number // 5 if "torch" in sys.modules else number


@pytest.mark.usefixtures("restless")
def test_at_any_moment_while_four_threads_step_and_one_is_in_the_callback() -> None:
    start = 2**40
    held = HeldCallback(start)
    tracker = StepTracker(held)
    stepping = threading.Event()
    counted = {f"Optimizer{number}Step": array("q", [0]) for number in range(4)}
    for name in counted:
        tracker.init_step_count(name)
    # So far below it that they raise nothing.
    tracker._assign_step(start)
    threads = [
        threading.Thread(target=step_until_the_end, args=(tracker, held, stepping, name, own))
        for name, own in counted.items()
    ]
    for thread in threads:
        thread.start()
    try:
        for _ in range(repetitions(forks(1_000), portable=100)):
            stepping.set()
            assert held.entered.wait(60)
            held.entered.clear()
            time.sleep(2e-4 * random.random())  # any moment will do
            child = fork(partial(check_in_child, tracker, held, counted))
            stepping.clear()  # leaves the processors to the child
            held.leave.set()
            assert_passed(child)
    finally:
        held.holding = False
        held.leave.set()
        stepping.set()
        for thread in threads:
            thread.join()
    counts = tracker.step_counts()
    assert {name: counts[name] for name in counted} == {
        name: own[0] for name, own in counted.items()
    }
    assert held.steps.tolist() == list(range(start, tracker.current_step() + 1))


def test_while_threads_contend_for_the_map() -> None:
    """Where its lock has just been handed to a thread that the child does not have."""
    tracker = StepTracker()
    for number in range(repetitions(1_000)):
        tracker.init_step_count(f"r{number}")
    looking = [True]

    def look() -> None:
        while looking:
            tracker.step_counts()

    threads = [threading.Thread(target=look) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(repetitions(forks(200))):
            in_child(partial(use_the_map, tracker))
    finally:
        looking.clear()
        for thread in threads:
            thread.join()


def use_the_map(tracker: StepTracker) -> None:
    assert tracker.step_counts()
    assert tracker.increment_step("new") == 1
    assert tracker.erase_step_count("new") is True


def test_while_another_thread_is_removing_a_cell() -> None:
    """The two steps of a removal are made one by a mutex, which a fork waits for."""
    substrate: Any = _atomic
    if backend == "native":
        lock, unlock = substrate._lock_discarding, substrate._unlock_discarding
    else:
        lock, unlock = substrate._discarding.acquire, substrate._discarding.release
    removing = threading.Event()

    def remove() -> None:
        lock()
        removing.set()
        time.sleep(0.05)
        unlock()

    tracker = StepTracker()
    tracker.init_step_count("a")
    thread = threading.Thread(target=remove)
    thread.start()
    assert removing.wait(60)

    def check() -> None:
        assert tracker.erase_step_count("a") is True
        assert tracker.step_counts() == {}

    in_child(check)
    thread.join()


def on_main_thread(work: Callable[[], None]) -> None:
    work()


def on_another_thread(work: Callable[[], None]) -> None:
    run_together(work)


@pytest.mark.parametrize("run", [on_main_thread, on_another_thread])
def test_inside_the_callback(run: Callable[[Callable[[], None]], None]) -> None:
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
        status = 1
        try:
            tracker.increment_step("a")
            assert steps == [1, 2]
            assert tracker.increment_step("a") == 3
            if children[0] != 0:
                assert_passed(children[0])
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            # Of a thread that forks, nothing is left in the child but itself.
            os._exit(status)

    # In a child, so that the one forked inside the callback ends as one, whatever it does.
    in_child(lambda: run(fork_in_callback))


def test_a_process_that_multiprocessing_forks_inside_the_callback() -> None:
    """It never returns from the callback, so it counts, and leaves its steps to nobody."""
    steps: list[int] = []
    exits: list[int | None] = []

    def work() -> None:
        signal.alarm(20)
        assert tracker.increment_step("worker") == 2
        run_together(lambda: tracker.increment_step("worker"))
        assert (tracker.current_step(), steps) == (3, [1])

    def on_step(step: int) -> None:
        steps.append(step)
        if step == 1:
            process = multiprocessing.get_context("fork").Process(target=work)
            process.start()
            process.join()
            exits.append(process.exitcode)

    tracker = StepTracker(on_step)
    assert tracker.increment_step("a") == 1
    assert tracker.increment_step("a") == 2
    assert (exits, steps) == ([0], [1, 2])


def test_counts_and_handles_go_along() -> None:
    tracker = StepTracker(start=5)
    handle = tracker.requester("a")
    handle.increment()

    def check() -> None:
        assert (tracker.current_step(), tracker.step_counts()) == (6, {"a": 6})
        assert handle.increment() == 7

    in_child(check)
    assert handle.count == 6, "the child counts for itself"
