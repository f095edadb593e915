"""Many tasks on one thread: asyncio's, and greenlets that switch inside the callback."""

from __future__ import annotations

import asyncio
import contextvars
import importlib
import sys
from typing import Any

import pytest

from kineto_step_tracker import StepTracker
from tests.conftest import Journal, repetitions

TASKS = 100


@pytest.fixture
def greenlet() -> Any:
    """The module; importing it switches the GIL on, also for all tests that follow."""
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        pytest.skip("greenlet needs the GIL; tox -e py313t runs this with the interleavings")
    return importlib.import_module("greenlet")


def test_many_asyncio_tasks_and_a_callback_that_schedules_more() -> None:
    journal = Journal()
    called: list[int] = []
    tasks: set[asyncio.Task[None]] = set()
    turns = repetitions(100, portable=3)

    async def note(step: int) -> None:
        await asyncio.sleep(0)
        called.append(step)

    def on_step(step: int) -> None:
        journal(step)
        if step % 2:
            tasks.add(asyncio.get_running_loop().create_task(note(step)))
        else:
            asyncio.get_running_loop().call_soon(called.append, step)

    async def work(tracker: StepTracker, name: str) -> None:
        for _ in range(turns):
            tracker.increment_step("shared")
            await asyncio.sleep(0)
            tracker.increment_step(name)
            await asyncio.sleep(0)
            tracker.erase_step_count(name)

    async def run() -> StepTracker:
        tracker = StepTracker(on_step)
        await asyncio.gather(*(work(tracker, f"r{number}") for number in range(TASKS)))
        await asyncio.gather(*tasks)
        return tracker

    last = asyncio.run(run()).current_step()
    journal.assert_complete(last)
    assert last >= TASKS * turns
    assert sorted(called) == list(range(1, last + 1))


def test_the_callback_runs_in_the_context_of_whoever_called() -> None:
    variable = contextvars.ContextVar("variable", default="none")
    seen: list[str] = []

    def on_step(step: int) -> None:
        seen.append(variable.get())
        variable.set(f"set in {step}")

    tracker = StepTracker(on_step)

    async def work(name: str) -> None:
        variable.set(name)
        await asyncio.sleep(0)
        step = tracker.increment_step("shared")
        assert variable.get() == f"set in {step}"

    async def run() -> None:
        await asyncio.gather(work("a"), work("b"))

    asyncio.run(run())
    assert sorted(seen) == ["a", "b"]
    assert variable.get() == "none"


def held_in_its_first_callback(greenlet: Any) -> tuple[StepTracker, list[int], Any]:
    """A tracker, the steps called back so far, and the greenlet that has switched away in there."""
    main = greenlet.getcurrent()
    steps: list[int] = []

    def on_step(step: int) -> None:
        steps.append(step)
        if step == 1:
            main.switch()

    tracker = StepTracker(on_step)
    holder = greenlet.greenlet(tracker.increment_step)
    holder.switch("holder")
    return tracker, steps, holder


def test_a_greenlet_that_switches_away_inside_the_callback(greenlet: Any) -> None:
    """To the tracker all greenlets of a thread are one: the others leave it their steps."""
    tracker, steps, holder = held_in_its_first_callback(greenlet)
    assert steps == [1]
    assert [tracker.increment_step("main") for _ in range(3)] == [2, 3, 4]
    other = greenlet.greenlet(tracker.increment_step)
    assert other.switch("main") == 5
    tracker.init_step_count("new")
    assert tracker.erase_step_count("main") is True
    assert steps == [1], "the callback does not overlap itself"
    assert holder.switch() == 1
    assert steps == [1, 2, 3, 4, 5]
    assert tracker.increment_step("main") == 6
    assert steps == [1, 2, 3, 4, 5, 6]


def test_many_greenlets_that_switch_in_every_callback(greenlet: Any) -> None:
    hub = greenlet.getcurrent()
    inside: list[int] = []
    journal = Journal()
    turns = repetitions(100, portable=3)

    def on_step(step: int) -> None:
        assert not inside
        inside.append(step)
        hub.switch()
        inside.pop()
        journal(step)

    tracker = StepTracker(on_step)

    def work(name: str) -> None:
        for _ in range(turns):
            tracker.increment_step("shared")
            hub.switch()
            tracker.increment_step(name)

    waiting: list[Any] = []
    for number in range(TASKS):
        waiting.append(greenlet.greenlet(work))
        waiting[-1].switch(f"r{number}")
    while waiting:
        waiting = [each for each in waiting if not each.dead]
        for each in waiting:
            each.switch()
    assert tracker.step_counts()["shared"] == TASKS * turns
    journal.assert_complete(tracker.current_step())


def test_a_greenlet_killed_inside_the_callback_lets_the_others_go_on(greenlet: Any) -> None:
    tracker, steps, holder = held_in_its_first_callback(greenlet)
    assert tracker.increment_step("main") == 2
    holder.throw(greenlet.GreenletExit)
    assert holder.dead
    assert steps == [1, 2], "it ran what was left to it before it died"
    assert tracker.increment_step("main") == 3
    assert steps == [1, 2, 3]
