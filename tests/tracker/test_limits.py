"""Counts near the limit of 64 bits, and the states that a cell has below zero."""

from __future__ import annotations

import itertools
from functools import partial

import pytest

from kineto_step_tracker import StepTracker
from kineto_step_tracker.bench.portable import load_portable
from tests.conftest import Journal, PlainAtomics, repetitions, run_together

LARGEST = 2**62  # that start may be; half of what a cell can hold is left to count in


def test_every_operation_counts_on_from_the_largest_start() -> None:
    steps: list[int] = []
    tracker = StepTracker(steps.append, start=LARGEST)
    tracker.init_step_count("a")
    assert tracker.step_counts() == {"a": LARGEST}
    assert tracker.increment_step("a") == LARGEST + 1
    handle = tracker.requester("b")
    assert (handle.count, handle.increment(), handle.count) == (
        LARGEST + 1,
        LARGEST + 2,
        LARGEST + 2,
    )
    assert tracker.increment_step("new") == LARGEST + 3
    assert tracker.erase_step_count("a") is True
    assert tracker.erase_step_count("a") is False
    assert tracker.increment_step("a") == LARGEST + 4
    assert handle.erase() is True
    assert handle.count is None
    assert handle.increment() == LARGEST + 5
    assert tracker.step_counts() == {
        "a": LARGEST + 4,
        "b": LARGEST + 5,
        "new": LARGEST + 3,
    }
    assert steps == list(range(LARGEST + 1, LARGEST + 6))


@pytest.mark.usefixtures("restless")
def test_many_threads_count_on_from_the_largest_start() -> None:
    journal = Journal(LARGEST)
    tracker = StepTracker(journal, start=LARGEST)
    tracker.init_step_count("shared")
    times = repetitions(20_000)

    def work(name: str) -> None:
        for _ in range(times):
            tracker.increment_step("shared")
            tracker.increment_step(name)
            tracker.erase_step_count(name)

    run_together(*(partial(work, f"r{number}") for number in range(4)))
    assert tracker.step_counts()["shared"] <= tracker.current_step()
    assert tracker.current_step() >= LARGEST + 4 * times
    journal.assert_complete(tracker.current_step())


def test_a_count_may_be_assigned_up_to_the_largest_start_and_counted_on() -> None:
    steps: list[int] = []
    tracker = StepTracker(steps.append, start=LARGEST - 1)
    assert tracker._assign("a", LARGEST) == LARGEST
    assert tracker.increment_step("a") == LARGEST + 1
    assert steps == [LARGEST, LARGEST + 1]
    for refused in (LARGEST + 1, 2**63 - 1, 2**63, 2**64):
        with pytest.raises(ValueError, match=r"from 0 to 2\*\*62"):
            tracker._assign("a", refused)
        with pytest.raises(ValueError, match=r"from 0 to 2\*\*62"):
            tracker._assign_step(refused)
        with pytest.raises(ValueError, match=r"from 0 to 2\*\*62"):
            tracker.reset(refused)
        with pytest.raises(ValueError, match=r"from 0 to 2\*\*62"):
            StepTracker(start=refused)
    assert tracker.step_counts() == {"a": LARGEST + 1}
    tracker._assign_step(LARGEST)
    assert (tracker.current_step(), tracker.step_counts()) == (LARGEST, {"a": LARGEST})
    tracker.reset(LARGEST)
    assert (tracker.current_step(), tracker.step_counts()) == (LARGEST, {})


def test_a_retired_cell_stays_retired_however_often_a_stale_handle_counts_in_it() -> None:
    tracker = StepTracker()
    stale = tracker.requester("a")
    stale.erase()
    times = repetitions(100_000)
    for number in range(1, times + 1):
        assert stale.increment() == number
    assert tracker.step_counts() == {"a": times}
    assert tracker.erase_step_count("a") is True
    assert stale.count is None
    tracker.init_step_count("a")
    assert stale.count == times


def test_the_states_below_zero_cannot_be_counted_into_one_another() -> None:
    """At a thousand million increments a second, no two are less than 70 years apart."""
    years = 70 * 365 * 24 * 3600 * 10**9
    _, portable = load_portable(PlainAtomics("atomics"))
    assert portable._MAX_START == LARGEST
    states = [portable._RETIRED, portable._FRESH, 0, portable._MAX_START, 2**63 - 1]
    assert portable._RETIRED >= -(2**63)
    assert min(high - low for low, high in itertools.pairwise(states)) > years
