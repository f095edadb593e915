"""What the package costs before it counts: its import, and the memory of its requesters.

It imports the standard library, the package's trackers and the report.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tracemalloc
from collections.abc import Callable

from kineto_step_tracker import StepTracker, backend
from kineto_step_tracker.bench.contenders import Contender
from kineto_step_tracker.bench.report import PACKAGE, Key, Question
from kineto_step_tracker.textbook import TextbookStepTracker

_REQUESTERS = 10_000

_IMPORT = """
import json, sys, time
began = time.perf_counter()
import kineto_step_tracker
took = time.perf_counter() - began
print(json.dumps([took, "torch" in sys.modules, "atomics" in sys.modules]))
"""


def measure(turns: int, watch: Callable[[float], object]) -> dict[Key, list[float]]:
    """Return seconds for the import, in new processes, and bytes for a requester."""
    key, needless = Key(Question.IMPORT, PACKAGE, 0), Key(Question.NEEDLESS, PACKAGE, 0)
    found: dict[Key, list[float]] = {key: [], needless: []}
    _import()  # from the disk
    for turn in range(turns):
        seconds, torch, atomics = _import()
        found[key].append(seconds)
        found[needless].append(torch + (atomics and backend == "native"))
        watch((turn + 1) / turns)
    for contender, make in (
        (Contender.NAME, StepTracker),
        (Contender.TEXTBOOK, TextbookStepTracker),
    ):
        found[Key(Question.MEMORY, contender, _REQUESTERS)] = [_bytes_a_requester(make)]
    return found


def _import() -> tuple[float, bool, bool]:
    done = subprocess.run(
        [sys.executable, "-c", _IMPORT], check=True, stdout=subprocess.PIPE, text=True
    )
    seconds, torch, atomics = json.loads(done.stdout)
    return seconds, torch, atomics


def _bytes_a_requester(make: Callable[[], StepTracker | TextbookStepTracker]) -> float:
    """Return what Python allocated for one of many, its name included."""
    tracker = make()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for number in range(_REQUESTERS):
            tracker.init_step_count(f"Optimizer#{number}")
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return (after - before) / _REQUESTERS
