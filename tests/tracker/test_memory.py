"""Memory stays flat while names and trackers come and go."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable

import pytest

from kineto_step_tracker import StepTracker, tracker
from tests.conftest import repetitions

# What a million rounds may leave behind, in allocated blocks: a leak of one object a round would
# leave a million, and CPython's own caches and free lists a few hundred.
BOUND = 1_000


def blocks_left_by(work: Callable[[], None]) -> int:
    gc.collect()
    before = sys.getallocatedblocks()
    work()
    gc.collect()
    return sys.getallocatedblocks() - before


def interned_for_ever() -> bool:
    """Whether CPython keeps interned names: 3.12 and free-threaded builds do, others do not."""

    def intern() -> None:
        for number in range(10 * BOUND):
            sys.intern(f"kept for ever? {number}")

    return blocks_left_by(intern) > 5 * BOUND


@pytest.fixture(scope="module")
def names() -> int:
    """How many names to go through: a million, or as many as may stay in this process for ever."""
    return repetitions(10_000 if interned_for_ever() else 1_000_000)


def use(subject: StepTracker, start: int, stop: int) -> None:
    for number in range(start, stop):
        name = f"Optimizer{number}Step"
        subject.increment_step(name)
        subject.increment_step(name)
        subject.erase_step_count(name)


def test_a_million_names_registered_and_erased(names: int) -> None:
    subject = StepTracker(lambda step: None)
    use(subject, 0, 100)

    def intern() -> None:
        for number in range(100, 100 + names):
            sys.intern(f"Optimizer{number}Step")

    # Where interned names stay, they do so without the tracker, too.
    blocks_left_by(intern)
    assert blocks_left_by(lambda: use(subject, 100, 100 + names)) < BOUND
    assert subject.step_counts() == {}
    assert subject.current_step() == 2 * (100 + names)


def test_a_million_handles_made_and_dropped() -> None:
    subject = StepTracker(lambda step: None)
    subject.init_step_count("a")

    def use_handles() -> None:
        for _ in range(repetitions(1_000_000)):
            with subject.requester("a") as handle:
                handle.increment()

    assert blocks_left_by(use_handles) < BOUND
    assert subject.step_counts() == {}


def test_a_million_trackers_made_and_dropped() -> None:
    known = len(tracker._trackers)

    def make() -> None:
        for _ in range(repetitions(1_000_000)):
            subject = StepTracker(abs)
            subject.init_step_count("a")

    assert blocks_left_by(make) < BOUND
    assert len(tracker._trackers) <= known


def test_trackers_in_garbage_cycles_are_freed_too() -> None:
    known = len(tracker._trackers)

    class Owner:
        def __init__(self) -> None:
            self.tracker = StepTracker(self.on_step)
            self.handle = self.tracker.requester("a")

        def on_step(self, step: int) -> None:
            pass

    def make() -> None:
        for _ in range(repetitions(50_000)):
            Owner().handle.increment()

    assert blocks_left_by(make) < BOUND
    assert len(tracker._trackers) <= known
