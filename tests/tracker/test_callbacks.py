"""Contract point 7: what a callback raises, and what becomes of the steps behind it."""

from __future__ import annotations

import asyncio
import dataclasses
import threading

import pytest

from kineto_step_tracker import StepTracker
from tests.conftest import Journal, repetitions, run_together


def test_an_error_leaves_the_increment_with_a_note_and_the_step_stands() -> None:
    def on_step(step: int) -> None:
        raise ValueError("disk full")

    tracker = StepTracker(on_step)
    with pytest.raises(ValueError, match="disk full") as raised:
        tracker.increment_step("a")
    assert raised.value.__notes__ == ["raised by the on_step callback for step 1"]
    assert (tracker.current_step(), tracker.step_counts()) == (1, {"a": 1})


def behind_a_callback(tracker: StepTracker, rises: int) -> None:
    """Used as a callback's body: leave some steps to the holder, which is this thread."""
    for _ in range(rises):
        tracker.increment_step("inner")


def test_several_errors_become_one_group_and_no_step_is_skipped() -> None:
    steps: list[int] = []

    def on_step(step: int) -> None:
        steps.append(step)
        if step == 1:
            behind_a_callback(tracker, 3)
        if step != 3:
            raise ValueError(step)

    tracker = StepTracker(on_step)
    with pytest.raises(ExceptionGroup) as raised:
        tracker.increment_step("a")
    assert steps == [1, 2, 3, 4]
    assert [error.args for error in raised.value.exceptions] == [(1,), (2,), (4,)]
    assert [error.__notes__ for error in raised.value.exceptions] == [
        [f"raised by the on_step callback for step {step}"] for step in (1, 2, 4)
    ]


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_stops_at_once_and_the_next_rise_runs_the_rest(
    stop: type[BaseException],
) -> None:
    steps: list[int] = []

    def on_step(step: int) -> None:
        steps.append(step)
        if step == 1:
            behind_a_callback(tracker, 3)
            raise ValueError("before it")
        if step == 2:
            raise stop

    tracker = StepTracker(on_step)
    with pytest.raises(stop) as raised:
        tracker.increment_step("a")
    assert steps == [1, 2]
    assert isinstance(raised.value.__cause__, ValueError), "the error before it is not lost"
    assert tracker.current_step() == 4
    assert tracker.increment_step("inner") == 5
    assert steps == [1, 2, 3, 4, 5]


def test_any_other_base_exception_is_an_error_like_the_rest() -> None:
    steps: list[int] = []

    def on_step(step: int) -> None:
        steps.append(step)
        if step == 1:
            behind_a_callback(tracker, 2)
            raise asyncio.CancelledError
        if step == 2:
            raise ValueError(step)

    tracker = StepTracker(on_step)
    with pytest.raises(BaseExceptionGroup) as raised:
        tracker.increment_step("a")
    assert steps == [1, 2, 3]
    assert [type(error) for error in raised.value.exceptions] == [
        asyncio.CancelledError,
        ValueError,
    ]


def test_an_error_that_takes_no_note_is_raised_without_one() -> None:
    @dataclasses.dataclass(frozen=True)
    class FrozenError(Exception):
        code: int

    steps: list[int] = []

    def on_step(step: int) -> None:
        steps.append(step)
        if step == 1:
            behind_a_callback(tracker, 1)
            raise FrozenError(7)

    tracker = StepTracker(on_step)
    with pytest.raises(FrozenError):
        tracker.increment_step("a")
    assert steps == [1, 2]


def test_an_interrupt_keeps_the_cause_that_it_came_with() -> None:
    def on_step(step: int) -> None:
        if step == 1:
            behind_a_callback(tracker, 1)
            raise ValueError(step)
        raise KeyboardInterrupt from OSError("mine")

    tracker = StepTracker(on_step)
    with pytest.raises(KeyboardInterrupt) as raised:
        tracker.increment_step("a")
    assert isinstance(raised.value.__cause__, OSError)


def test_an_error_reaches_the_call_that_ran_the_callback_and_no_other() -> None:
    entered, leave = threading.Event(), threading.Event()

    def on_step(step: int) -> None:
        if step == 1:
            entered.set()
            assert leave.wait(60)
        else:
            raise ValueError(step)

    tracker = StepTracker(on_step)

    def run_both() -> None:
        with pytest.raises(ValueError, match="2") as raised:
            tracker.increment_step("a")
        assert raised.value.__notes__ == ["raised by the on_step callback for step 2"]

    def leave_mine() -> None:
        assert entered.wait(60)
        assert tracker.increment_step("b") == 2
        leave.set()

    run_together(run_both, leave_mine)


def test_after_an_error_callbacks_go_on() -> None:
    steps: list[int] = []

    def on_step(step: int) -> None:
        steps.append(step)
        if step % 3 == 0:
            raise ValueError(step)

    tracker = StepTracker(on_step)
    for step in range(1, 10):
        if step % 3 == 0:
            with pytest.raises(ValueError, match=str(step)):
                tracker.increment_step("a")
        else:
            tracker.increment_step("a")
    assert steps == list(range(1, 10))


def test_an_error_does_not_leave_init_or_erase_half_done() -> None:
    """Steps that an interrupt left behind are run by init and erase, whose work stands."""

    def on_step(step: int) -> None:
        if step == 1:
            tracker.increment_step("inner")
            raise KeyboardInterrupt
        raise ValueError(step)

    tracker = StepTracker(on_step)
    with pytest.raises(KeyboardInterrupt):
        tracker.increment_step("a")
    with pytest.raises(ValueError, match="2"):
        tracker.init_step_count("a")
    assert tracker.step_counts() == {"a": 2, "inner": 2}


@pytest.mark.usefixtures("restless")
def test_every_error_leaves_exactly_one_of_many_threads_and_no_step_is_lost() -> None:
    journal = Journal()
    raised: list[BaseException] = []
    times = repetitions(5_000, portable=50)

    def on_step(step: int) -> None:
        journal(step)
        if step % 3 == 0:
            raise ValueError(step)

    tracker = StepTracker(on_step)

    def work() -> None:
        for _ in range(times):
            try:
                tracker.increment_step("shared")
            except ValueError as error:
                raised.append(error)
            except ExceptionGroup as group:
                raised.extend(group.exceptions)

    run_together(*[work] * 4)
    last = 4 * times
    assert tracker.step_counts() == {"shared": last}
    journal.assert_complete(last)
    assert sorted(error.args[0] for error in raised) == list(range(3, last + 1, 3))
    assert all(
        error.__notes__ == [f"raised by the on_step callback for step {error.args[0]}"]
        for error in raised
    )


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit])
@pytest.mark.usefixtures("restless")
def test_interrupts_among_many_threads_lose_no_step(stop: type[BaseException]) -> None:
    journal = Journal()
    stopped: list[int] = []
    times = repetitions(5_000, portable=50)

    def on_step(step: int) -> None:
        journal(step)
        if step % 3 == 0:
            raise stop(step)

    tracker = StepTracker(on_step)

    def work() -> None:
        for _ in range(times):
            try:
                tracker.increment_step("shared")
            except stop as error:
                stopped.append(error.args[0])

    run_together(*[work] * 4)
    # The last to stop leaves the steps behind it, three at a time, to whoever comes next.
    while journal.last < tracker.current_step():
        try:
            tracker.init_step_count("shared")
        except stop as error:
            stopped.append(error.args[0])
    last = 4 * times
    assert tracker.step_counts() == {"shared": last}
    journal.assert_complete(last)
    assert sorted(stopped) == list(range(3, last + 1, 3))
