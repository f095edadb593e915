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
import sys, time
began = time.perf_counter()
import kineto_step_tracker
took = time.perf_counter() - began
import json
print(json.dumps([took, "torch" in sys.modules, "atomics" in sys.modules]))
"""
# The names are interned before, as otherwise it depends on their number whether Python's table of
# all interned strings grows just then.
_REGISTER = """
import json, sys, tracemalloc
from kineto_step_tracker import StepTracker
from kineto_step_tracker.textbook import TextbookStepTracker
names = [sys.intern(f"Optimizer#{{number}}") for number in range({requesters})]
tracker = {tracker}()
tracemalloc.start()
for name in names:
    tracker.init_step_count(name)
taken, _ = tracemalloc.get_traced_memory()
print(json.dumps([(taken + sum(map(sys.getsizeof, names))) / {requesters}]))
"""


def measure(turns: int, watch: Callable[[float], object]) -> dict[Key, list[float]]:
    """Return seconds for the import, and bytes for one of many requesters."""
    key, needless = Key(Question.IMPORT, PACKAGE, 0), Key(Question.NEEDLESS, PACKAGE, 0)
    found: dict[Key, list[float]] = {key: [], needless: []}
    _results(_IMPORT)  # from the disk
    for turn in range(turns):
        seconds, torch, atomics = _results(_IMPORT)
        found[key].append(seconds)
        found[needless].append(torch + (atomics and backend == "native"))
        watch((turn + 1) / turns)
    return found | memory(_REQUESTERS)


def memory(requesters: int) -> dict[Key, list[float]]:
    """Return the bytes that one of so many requesters takes, its name included."""
    return {
        Key(Question.MEMORY, contender, requesters): _results(
            _REGISTER.format(tracker=tracker, requesters=requesters)
        )
        for contender, tracker in (
            (Contender.NAME, "StepTracker"),
            (Contender.TEXTBOOK, "TextbookStepTracker"),
        )
    }


def _results(program: str) -> list[float]:
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, stdout=subprocess.PIPE, text=True
    )
    results: list[float] = json.loads(done.stdout)
    return results
