"""Contract point 6: every operation from the callback, signal handlers and finalisers."""

from __future__ import annotations

import gc
import random
import signal
import threading
import weakref
from types import FrameType

import pytest

from kineto_step_tracker import StepTracker, backend
from tests.conftest import Journal, repetitions


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


@pytest.mark.usefixtures("alarm")
def test_a_signal_handler_may_do_anything_at_any_point() -> None:
    """The handler registers, counts and erases while the main thread does the same."""
    pause = 2e-5 if backend == "native" else 1e-3
    signals = repetitions(10_000, portable=2_000)
    journal = Journal()
    in_callback = False
    handled = handled_in_callback = increments = 0

    def on_step(step: int) -> None:
        nonlocal in_callback
        in_callback = True
        journal(step)
        for _ in range(repetitions(100, portable=1_000)):
            pass  # takes its time, so that signals find it
        in_callback = False

    tracker = StepTracker(on_step)

    def arm() -> None:
        # And once more later: CPython up to 3.12 may forget a signal that comes while it looks for
        # others, until the next comes.
        more = handled < signals
        signal.setitimer(signal.ITIMER_REAL, more and random.uniform(1e-5, pause), more and 0.05)

    def handler(number: int, frame: FrameType | None) -> None:
        nonlocal handled, handled_in_callback
        handled += 1
        handled_in_callback += in_callback
        tracker.increment_step("handler")
        tracker.increment_step("both")
        tracker.increment_step("shared")
        if handled % 2:
            tracker.erase_step_count("shared")
        else:
            tracker.init_step_count("shared")
        tracker.step_counts()
        arm()

    for name in ("handler", "both"):
        tracker.init_step_count(name)
    # Both trail the global step and so keep their counts exact: nothing re-initialises them.
    signal.signal(signal.SIGALRM, handler)
    arm()
    while handled < signals:
        for _ in range(repetitions(100, portable=1)):
            tracker.increment_step("both")
            tracker.requester("shared").increment()
            tracker.erase_step_count("shared")
            increments += 1
    counts = tracker.step_counts()
    assert counts["handler"] == handled
    assert counts["both"] == handled + increments
    assert handled_in_callback > 0
    journal.assert_complete(tracker.current_step())


def test_finalisers_and_the_garbage_collector_may_do_anything_at_any_allocation() -> None:
    """Everything here makes garbage, and the collector runs as often as CPython lets it."""
    journal = Journal()
    inside = False
    # What the collector and the callback may still raise in this turn: every rise allocates,
    # and every allocation may call the collector, for ever otherwise.
    budget = 0
    made = finalised = collections = collections_inside = 0

    class Optimizer:
        def __init__(self) -> None:
            nonlocal made
            made += 1
            self.itself = self
            weakref.finalize(self, tracker.erase_step_count, "shared")

        def __del__(self) -> None:
            nonlocal finalised
            finalised += 1
            tracker.increment_step("finaliser")
            tracker.increment_step("shared")

    def on_collection(phase: str, info: dict[str, int]) -> None:
        nonlocal collections, collections_inside, budget
        collections += 1
        collections_inside += inside
        tracker.increment_step("collector")
        if budget:
            budget -= 1
            tracker.increment_step("shared")
            tracker.erase_step_count("shared")
            tracker.step_counts()

    def on_step(step: int) -> None:
        nonlocal budget
        journal(step)
        if budget:
            budget -= 1
            Optimizer()
        if step % 500 == 0:
            gc.collect()  # free-threaded CPython waits until much of the heap is new

    tracker = StepTracker(on_step)
    for name in ("finaliser", "collector"):
        tracker.init_step_count(name)
    # So far below it that the collector raises nothing by merely counting its runs.
    tracker._assign_step(2**40)
    journal.last = 2**40
    threshold = gc.get_threshold()
    gc.callbacks.append(on_collection)
    gc.set_threshold(1)
    try:
        for _ in range(repetitions(2_000, portable=200)):
            Optimizer()
            inside, budget = True, 4
            tracker.increment_step("shared")
            tracker.requester("handle").increment()
            tracker.init_step_count("shared")
            tracker.erase_step_count("shared")
            inside, budget = False, 0
    finally:
        gc.set_threshold(*threshold)
        gc.callbacks.remove(on_collection)
        gc.collect()
    assert finalised == made
    assert collections_inside > 0
    counts = tracker.step_counts()
    assert counts["finaliser"] == finalised
    assert counts["collector"] == collections
    journal.assert_complete(tracker.current_step())


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
