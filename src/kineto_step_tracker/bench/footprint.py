"""What the package costs before it counts: its import, and the memory of its requesters.

It imports the standard library, the contenders' names and the report.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable

from kineto_step_tracker import backend
from kineto_step_tracker.bench.contenders import Contender
from kineto_step_tracker.bench.report import PACKAGE, Key, Question

_REQUESTERS = 10_000

# Each in a new process: what this one has loaded and allocated plays no part.
_IMPORT = """
import json, sys, time
began = time.perf_counter()
import kineto_step_tracker
took = time.perf_counter() - began
print(json.dumps([took, "torch" in sys.modules, "atomics" in sys.modules]))
"""
_REGISTER = """
import json, tracemalloc
from kineto_step_tracker import StepTracker
from kineto_step_tracker.textbook import TextbookStepTracker
tracker = {tracker}()
tracemalloc.start()
before, _ = tracemalloc.get_traced_memory()
for number in range({requesters}):
    tracker.init_step_count(f"Optimizer#{{number}}")
after, _ = tracemalloc.get_traced_memory()
print(json.dumps([(after - before) / {requesters}]))
"""


def measure(turns: int, watch: Callable[[float], object]) -> dict[Key, list[float]]:
    """Return seconds for the import, and bytes for one of many requesters, its name included."""
    key, needless = Key(Question.IMPORT, PACKAGE, 0), Key(Question.NEEDLESS, PACKAGE, 0)
    found: dict[Key, list[float]] = {key: [], needless: []}
    _results(_IMPORT)  # from the disk
    for turn in range(turns):
        seconds, torch, atomics = _results(_IMPORT)
        found[key].append(seconds)
        found[needless].append(torch + (atomics and backend == "native"))
        watch((turn + 1) / turns)
    for contender, tracker in (
        (Contender.NAME, "StepTracker"),
        (Contender.TEXTBOOK, "TextbookStepTracker"),
    ):
        program = _REGISTER.format(tracker=tracker, requesters=_REQUESTERS)
        found[Key(Question.MEMORY, contender, _REQUESTERS)] = _results(program)
    return found


def _results(program: str) -> list[float]:
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, stdout=subprocess.PIPE, text=True
    )
    results: list[float] = json.loads(done.stdout)
    return results
