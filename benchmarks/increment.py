"""How long does one increment take, beside PyTorch's algorithm, bare and behind a lock?

    python benchmarks/increment.py

Every figure is the best of many short runs taken in turns, in one process on one thread; the
ratios are what counts.
"""

from __future__ import annotations

from timeit import Timer
from typing import Protocol

from kineto_step_tracker import StepTracker, backend
from kineto_step_tracker.textbook import LockedStepTracker, TextbookStepTracker

REQUESTERS = ("r0", "r1", "r2", "r3")
CALLS = 2_000
TURNS = 200


class Tracker(Protocol):
    def init_step_count(self, requester: str) -> None: ...
    def increment_step(self, requester: str) -> int: ...


def rising(tracker: Tracker) -> Timer:
    for name in REQUESTERS:
        tracker.init_step_count(name)
    return Timer("increment('r0')", globals={"increment": tracker.increment_step})


def not_rising(tracker: Tracker) -> Timer:
    timer = rising(tracker)
    for _ in range(CALLS * TURNS):
        tracker.increment_step("r1")
    return timer


def timers() -> dict[str, tuple[Timer, ...]]:
    """For each tracker, an increment that is no rise and one that is, calling a C function."""
    handles = []
    for prepare in (not_rising, rising):
        tracker = StepTracker(id)
        prepare(tracker)
        handle = tracker.requester("r0")
        handles.append(Timer("increment()", globals={"increment": handle.increment}))
    return {
        "by name": (not_rising(StepTracker(id)), rising(StepTracker(id))),
        "by handle": tuple(handles),
        "textbook": (not_rising(TextbookStepTracker(id)), rising(TextbookStepTracker(id))),
        "locked": (not_rising(LockedStepTracker(id)), rising(LockedStepTracker(id))),
        "empty method": (Timer("length()", globals={"length": [].__len__}),),
    }


def main() -> None:
    best: dict[tuple[str, int], float] = {}
    found = timers()
    for _ in range(TURNS):
        for name, kinds in found.items():
            for kind, timer in enumerate(kinds):
                seconds = timer.timeit(CALLS) / CALLS
                best[name, kind] = min(seconds, best.get((name, kind), seconds))
    print(f"backend {backend}, {len(REQUESTERS)} requesters: ns, and as a multiple of 'by name'")
    print(f"{'':14}{'no rise':>10}{'':8}{'a rise':>10}")
    for name, kinds in found.items():
        row = ""
        for kind in range(len(kinds)):
            mine = best[name, kind]
            row += f"{mine * 1e9:10.0f}{mine / best['by name', kind]:7.1f}x"
        print(f"{name:14}{row}")


if __name__ == "__main__":
    main()
