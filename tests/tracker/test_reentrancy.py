"""Contract point 6: every operation from the callback, signal handlers and finalisers."""

from __future__ import annotations

import gc
import signal
import threading
import weakref
from collections.abc import Iterator
from types import FrameType

import pytest

from kineto_step_tracker import StepTracker
from tests.conftest import repetitions


def test_every_operation_from_inside_the_callback() -> None:
    steps: list[int] = []

    def on_step(step: int) -> None:
        steps.append(step)
        if step == 1:
            handle = tracker.requester("handle")
            assert handle.increment() == 2
            assert tracker.increment_step("new") == 3
            tracker.init_step_count("a")
            assert tracker.increment_step("a") == 4
            assert tracker.erase_step_count("new") is True
            assert tracker.step_counts() == {"a": 4, "handle": 2}
            assert tracker.current_step() == 4
            assert steps == [1], "the callback does not run inside itself"

    tracker = StepTracker(on_step)
    assert tracker.increment_step("a") == 1
    assert steps == [1, 2, 3, 4]


@pytest.fixture
def alarm() -> Iterator[None]:
    """Put the handler of SIGALRM back, and its timer off, at the end of the test."""
    before = signal.getsignal(signal.SIGALRM)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.usefixtures("alarm")
def test_a_signal_handler_may_do_anything_at_any_point() -> None:
    """The handler registers, counts and erases while the main thread does the same."""
    steps: list[int] = []
    tracker = StepTracker(steps.append)
    handled = 0

    def handler(number: int, frame: FrameType | None) -> None:
        nonlocal handled
        handled += 1
        tracker.increment_step("handler")
        tracker.increment_step("shared")
        if handled % 2:
            tracker.erase_step_count("shared")
        else:
            tracker.init_step_count("shared")
        tracker.step_counts()
        if handled < 1_000:
            signal.setitimer(signal.ITIMER_REAL, 1e-4)

    signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 1e-4)
    increments = 0
    while handled < 1_000:
        for _ in range(repetitions(1_000)):
            tracker.increment_step("main")
            tracker.increment_step("shared")
            tracker.erase_step_count("shared")
            increments += 1
    counts = tracker.step_counts()
    assert counts["handler"] >= handled
    assert counts["main"] >= increments
    assert steps == list(range(1, tracker.current_step() + 1))


def test_finalisers_may_do_anything() -> None:
    steps: list[int] = []
    tracker = StepTracker(steps.append)
    finalised = 0

    class Optimizer:
        def __init__(self) -> None:
            self.itself = self
            weakref.finalize(self, tracker.erase_step_count, "shared")

        def __del__(self) -> None:
            tracker.increment_step("finaliser")
            tracker.increment_step("shared")
            nonlocal finalised
            finalised += 1

    threshold = gc.get_threshold()
    gc.set_threshold(1)
    try:
        for _ in range(500):
            Optimizer()
            tracker.increment_step("shared")
            tracker.erase_step_count("shared")
            tracker.requester("handle").increment()
    finally:
        gc.set_threshold(*threshold)
    gc.collect()
    assert finalised == 500
    assert steps == list(range(1, tracker.current_step() + 1))


def test_a_tracker_can_be_collected() -> None:
    """Its callback refers back to it, as callbacks do."""

    class Owner:
        def __init__(self) -> None:
            self.tracker = StepTracker(self.on_step)

        def on_step(self, step: int) -> None:
            self.tracker.current_step()

    owner = Owner()
    owner.tracker.increment_step("a")
    gone = weakref.ref(owner.tracker)
    del owner
    gc.collect()
    assert gone() is None


def test_a_callback_that_starts_a_thread_and_waits_for_its_increment() -> None:
    steps: list[int] = []

    def on_step(step: int) -> None:
        steps.append(step)
        if step == 1:
            other = threading.Thread(target=tracker.increment_step, args=("other",))
            other.start()
            other.join(60)
            assert not other.is_alive()

    tracker = StepTracker(on_step)
    tracker.increment_step("a")
    assert steps == [1, 2]
