"""Contract points 1 to 5 on real threads: exact, in order, linearizable, nobody waits."""

from __future__ import annotations

import threading
from functools import partial

import pytest

from kineto_step_tracker import StepTracker
from tests.conftest import Journal, repetitions, run_together

THREADS = 8


def increments(tracker: StepTracker, name: str, times: int) -> None:
    for _ in range(times):
        tracker.increment_step(name)


@pytest.mark.usefixtures("restless")
def test_a_shared_requester_loses_nothing() -> None:
    journal = Journal()
    tracker = StepTracker(journal)
    times = repetitions(100_000)
    run_together(*[partial(increments, tracker, "shared", times)] * THREADS)
    assert tracker.step_counts() == {"shared": THREADS * times}
    assert tracker.current_step() == THREADS * times
    journal.assert_complete(THREADS * times)


@pytest.mark.usefixtures("restless")
def test_separate_requesters_rise_together() -> None:
    journal = Journal()
    tracker = StepTracker(journal)
    times = repetitions(100_000)
    names = [f"Optimizer{number}Step" for number in range(THREADS)]
    for name in names:
        tracker.init_step_count(name)
    run_together(*(partial(increments, tracker, name, times) for name in names))
    assert tracker.step_counts() == dict.fromkeys(names, times)
    journal.assert_complete(times)


@pytest.mark.usefixtures("restless")
def test_handles_of_one_requester_lose_nothing() -> None:
    journal = Journal()
    tracker = StepTracker(journal)
    times = repetitions(100_000)

    def work() -> None:
        handle = tracker.requester("shared")
        for _ in range(times):
            handle.increment()

    run_together(*[work] * THREADS)
    assert tracker.step_counts() == {"shared": THREADS * times}
    journal.assert_complete(THREADS * times)


@pytest.mark.usefixtures("restless")
def test_erasing_and_re_initialising_among_increments() -> None:
    """Every increment returns at least its own count, and every rise is run once, in order."""
    journal = Journal()
    tracker = StepTracker(journal)
    times = repetitions(100_000)
    erased = []

    def work(number: int) -> None:
        mine = f"Optimizer{number}Step"
        erases = 0
        floor = 0
        for turn in range(times):
            step = tracker.increment_step("shared" if turn % 2 else mine)
            assert step >= floor, "the global step fell"
            floor = step
            if turn % 50 == 0:
                tracker.init_step_count("shared")
            if turn % 70 == 0:
                erases += tracker.erase_step_count("shared")
            if turn % 90 == 0:
                assert tracker.erase_step_count(mine) is True, "only this thread erases it"
        erased.append(erases)

    run_together(*(partial(work, number) for number in range(THREADS)))
    last = tracker.current_step()
    assert max(tracker.step_counts().values()) <= last <= THREADS * times
    journal.assert_complete(last)
    assert 0 < sum(erased) <= THREADS * (times // 70 + 1)


@pytest.mark.usefixtures("restless")
def test_one_registration_is_erased_by_exactly_one_thread() -> None:
    tracker = StepTracker()
    rounds = repetitions(1_000)
    barrier = threading.Barrier(THREADS)
    erasers: list[int] = []

    def work(number: int) -> None:
        for turn in range(rounds):
            if barrier.wait() == 0:
                tracker.init_step_count(f"r{turn}")
            barrier.wait()
            if tracker.erase_step_count(f"r{turn}"):
                erasers.append(turn)

    run_together(*(partial(work, number) for number in range(THREADS)))
    assert sorted(erasers) == list(range(rounds))
    assert tracker.step_counts() == {}


@pytest.mark.usefixtures("restless")
def test_first_increments_of_one_name_are_all_counted() -> None:
    tracker = StepTracker()
    rounds = repetitions(1_000)
    barrier = threading.Barrier(THREADS)

    def work() -> None:
        for turn in range(rounds):
            barrier.wait()
            tracker.increment_step(f"r{turn}")

    run_together(*[work] * THREADS)
    counts = tracker.step_counts()
    assert [counts[f"r{turn}"] for turn in range(rounds)] == [
        THREADS * (turn + 1) for turn in range(rounds)
    ]


def test_nobody_waits_for_the_callback() -> None:
    """A step raised while another thread is in the callback is left to that thread."""
    entered, leave = threading.Event(), threading.Event()
    steps: list[tuple[int, int]] = []

    def on_step(step: int) -> None:
        if step == 1:
            entered.set()
            assert leave.wait(60)
        steps.append((step, threading.get_ident()))

    tracker = StepTracker(on_step)
    inside = threading.Thread(target=tracker.increment_step, args=("a",))
    inside.start()
    assert entered.wait(60)
    assert [tracker.increment_step("b") for _ in range(3)] == [2, 3, 4]
    tracker.init_step_count("c")
    assert tracker.erase_step_count("b") is True
    assert tracker.step_counts() == {"a": 1, "c": 4}
    assert steps == []
    leave.set()
    inside.join()
    assert steps == [(step, inside.ident) for step in (1, 2, 3, 4)]


@pytest.mark.usefixtures("restless")
def test_no_count_that_is_seen_is_above_the_global_step() -> None:
    tracker = StepTracker()
    tracker.init_step_count("shared")
    handle = tracker.requester("shared")
    times = repetitions(50_000)
    done = threading.Event()

    def work() -> None:
        increments(tracker, "shared", times)
        done.set()

    def look() -> None:
        while not done.is_set():
            counts = tracker.step_counts()
            assert counts["shared"] <= tracker.current_step()
            count = handle.count
            assert count is not None
            assert count <= tracker.current_step()

    run_together(work, look, look)
