"""Clocks: statements timed in turns on one thread, and throughput of threads started together.

It imports the standard library only. The machine's speed changes from moment to moment, so what
is compared is measured in turns, and a ratio is taken within each turn.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import repeat
from time import perf_counter
from typing import Any, TypeVar

_Key = TypeVar("_Key", bound=Hashable)

# A run is long enough that its ends do not matter, and so short that many are undisturbed.
_RUN = 0.0004
_RUNS = 5
# On a thread, between two looks at the clock. Even with one switch of threads in each, as a
# contended lock forces, there are many in a measurement.
_LAP = 0.0005


@dataclass(frozen=True)
class Work:
    """A statement to execute many times over, and the names that it uses.

    Args:
        statement: one line of Python.
        names: what its global names mean.
        around: makes the context in which it is timed.
    """

    statement: str
    names: Mapping[str, object] = field(default_factory=dict)
    around: Callable[[], AbstractContextManager[object]] = nullcontext

    def loop(self) -> Callable[[int], float]:
        """Return a function that executes it so many times, and returns the seconds it took."""
        space: dict[str, Any] = {**self.names, "perf_counter": perf_counter, "repeat": repeat}
        source = (
            "def loop(times):\n"
            "    numbers = repeat(None, times)\n"
            "    began = perf_counter()\n"
            "    for _ in numbers:\n"
            f"        {self.statement}\n"
            "    return perf_counter() - began\n"
        )
        exec(source, space)
        return space["loop"]  # type: ignore[no-any-return]

    def time(self, times: int) -> float:
        """Return the seconds that so many executions take, in the context made by ``around``."""
        loop = self.loop()
        with self.around():
            return loop(times)


def in_turns(
    works: Mapping[_Key, Work],
    turns: int,
    watch: Callable[[float], object] = lambda share: None,
) -> dict[_Key, list[float]]:
    """Time each work once a turn, and return the seconds an execution took, turn by turn.

    A turn takes the best of a few short runs, since what disturbs one only ever makes it longer.
    Each turn begins with another work. ``watch`` is told the share that is done.
    """
    loops = {key: work.loop() for key, work in works.items()}
    times = {key: _enough(work, loops[key]) for key, work in works.items()}
    found: dict[_Key, list[float]] = {key: [] for key in works}
    keys = list(works)
    for turn in range(turns):
        for number in range(len(keys)):
            key = keys[(turn + number) % len(keys)]
            with works[key].around(), without_collections():
                best = min(loops[key](times[key]) for _ in range(_RUNS))
            found[key].append(best / times[key])
            watch((turn * len(keys) + number + 1) / (turns * len(keys)))
    return found


def _enough(work: Work, loop: Callable[[int], float]) -> int:
    """Return how many executions a run is made of."""
    times = 1
    with work.around(), without_collections():
        while loop(times) < _RUN:
            times *= 2
    return times


@contextmanager
def without_collections() -> Iterator[None]:
    """Keep the garbage collector, which comes when it likes, out of a measurement."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def throughput(makers: Sequence[Callable[[], Work]], seconds: float) -> float:
    """Return how many executions a second all threads together reach, one work a thread.

    Each thread makes its work itself, all begin together, and each goes on for so many seconds.
    The caller has entered the context that the works need.
    """
    barrier = threading.Barrier(len(makers))
    laps: list[tuple[float, float, int]] = []
    errors: list[BaseException] = []

    def run(make: Callable[[], Work]) -> None:
        try:
            work = make()
            loop, lap, times = work.loop(), 16, 0
            barrier.wait()
            now = began = perf_counter()
            while now < began + seconds:
                took = loop(lap)
                times += lap
                if took < _LAP:
                    lap *= 2
                now = perf_counter()
            laps.append((began, now, times))
        except BaseException as error:
            errors.append(error)
            barrier.abort()

    threads = [threading.Thread(target=run, args=(make,)) for make in makers]
    with without_collections():
        try:
            for thread in threads:
                thread.start()
        except BaseException:
            barrier.abort()
            raise
        for thread in threads:
            thread.join()
    if errors:
        raise errors[0]
    span = max(end for _, end, _ in laps) - min(began for began, _, _ in laps)
    return sum(times for _, _, times in laps) / span
