"""The explorer itself: it misses no outcome that trying every single schedule finds."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from .explorer import explore, scheduler
from .programs import Program, Run, examine, replay, shipped
from .test_mutants import MUTANTS


def every_schedule(start: Callable[[], None]) -> Iterator[None]:
    """Execute a program once for every schedule there is, and yield at the end of each."""
    unexplored: list[list[int]] = [[]]
    while unexplored:
        start()
        prefix = unexplored.pop()
        if prefix:
            scheduler.follow(prefix)
        while runnable := scheduler.runnable():
            unexplored.extend([*scheduler.schedule, other] for other in runnable[1:])
            scheduler.follow(runnable[:1])
        yield
        scheduler.stop()


def outcomes(
    text: str, schedules: Callable[[Callable[[], None]], Iterator[None]]
) -> tuple[int, set[object]]:
    """How many schedules there were, and everything that a caller could tell apart in them."""
    program = Program.parse(text)
    runs: list[Run] = []
    found: set[object] = set()
    for _ in schedules(lambda: runs.append(Run(program, shipped()))):
        calls = sorted(scheduler.calls, key=lambda call: (call.thread, call.first))
        order = tuple(one.last < other.first for one in calls for other in calls)
        results = tuple((call.thread, call.text, repr(call.result)) for call in calls)
        problems = runs[-1].check()
        tracker = runs[-1].tracker
        found.add((order, results, tracker.current_step(), repr(tracker.step_counts()), *problems))
    return len(runs), found


@pytest.mark.parametrize(
    "program",
    [
        "handle a: step a | step a",
        "handle a: step a | erase a",
        "handle a: step a | init a; current",
        "handle a: step a | current; counts",
        "handle a; handle b: step a | step b; current",
        "handle a: step a | current | counts",
        "increment a | current; current",
        "increment a | erase a",
        "handle a: step a; current ^ step a",
        "handle a: step a ^ init a | current",
        "handle a: current ^ step a | current ^ current",
        "handle a: step a; current | current; current",
        "handle a: current | current | current",
        "handle a: step a | counts ^ current",
        "handle a: step a | current / raises",
    ],
)
def test_the_reduction_loses_no_outcome(program: str) -> None:
    schedules, expected = outcomes(program, every_schedule)
    explored, found = outcomes(program, explore)
    assert found == expected
    assert explored <= schedules


def test_a_failure_replays_from_its_seed() -> None:
    mutant = MUTANTS[0]
    failure = examine(mutant.program, mutant.load()).failure
    seed = failure.splitlines()[0].split()[-1]
    assert replay(mutant.program, seed, mutant.load()) == failure
    assert replay(mutant.program, seed) != failure


def test_a_seed_of_another_program_is_refused() -> None:
    with pytest.raises(ValueError, match="thread A cannot go on"):
        replay("current | current", "A2")


def test_what_was_made_before_does_not_change_what_is_explored() -> None:
    program = "handle a; erase a: increment a | handle a; erase a"
    explored = outcomes(program, explore)
    scheduler.new_name()
    assert outcomes(program, explore) == explored
