"""Bench: how fast the trackers are, side by side with what people would otherwise use.

It imports its own rooms: `steps`, `threads`, `footprint` and, where PyTorch is installed,
`optimizers` measure; `contenders` says what, `clocks` how, `targets` what is aimed at; `drawing`,
which needs matplotlib, is imported by whoever wants a picture. It knows no terminal.

Everything is measured in this process, one after another: whatever else it or the machine does
meanwhile makes the figures worse.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import sys
from collections.abc import Callable
from functools import partial
from importlib import metadata
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

from kineto_step_tracker import backend
from kineto_step_tracker.bench import footprint, steps, threads
from kineto_step_tracker.bench.contenders import Contender, is_there, trouble_with
from kineto_step_tracker.bench.report import Key, Question, Report, Spread
from kineto_step_tracker.bench.targets import Target, Verdict, verdicts

__all__ = [
    "Key",
    "Progress",
    "Question",
    "Report",
    "Spread",
    "Target",
    "Verdict",
    "import_contenders",
    "run",
    "verdicts",
]

_Values = dict[Key, list[float]]
_Measure = Callable[[Callable[[float], object]], _Values]


class Progress(NamedTuple):
    """How far a run is: what it measures, and the share of all that is done, from 0 to 1."""

    doing: str
    share: float


class _Part(NamedTuple):
    doing: str
    seconds: float  # about
    measure: _Measure


def run(quick: bool = False, watch: Callable[[Progress], object] = lambda progress: None) -> Report:
    """Measure, and return what came out.

    Takes under a minute, or if ``quick`` about a third of that, with fewer turns, which noise
    disturbs more. Imports PyTorch, cereggii and atomics if they are installed. The process-wide
    tracker is at step 0 afterwards, and PyTorch as it was.

    Args:
        quick: whether to take fewer turns.
        watch: called on this thread, between two measurements, with the progress so far.

    Raises:
        TypeError: ``quick`` is not a bool, or ``watch`` is not callable.
        RuntimeError: the tracker is installed in PyTorch, whose class then is no other's.

    Not thread-safe: one run at a time, and nothing else meanwhile.
    """
    if not isinstance(quick, bool):
        raise TypeError(f"quick must be a bool, not {quick!r}")
    if not callable(watch):
        raise TypeError(f"watch must be callable, not {watch!r}")
    ours = sys.modules.get("kineto_step_tracker.pytorch")
    if ours is not None and ours.is_installed():
        raise RuntimeError(
            "the tracker is installed in PyTorch, so that there is nothing to compare it with: "
            "call kineto_step_tracker.pytorch.uninstall() first"
        )
    began = perf_counter()
    watch(Progress("imports", 0))
    import_contenders()
    parts = _parts(quick)
    total = sum(part.seconds for part in parts)
    values: _Values = {}
    done = 0.0
    for part in parts:
        watch(Progress(part.doing, done / total))
        values |= part.measure(partial(_watch_part, watch, part, done, total))
        done += part.seconds
    watch(Progress("done", 1))
    return Report(
        environment=environment(),
        backend=backend,
        free_threaded=not _gil_enabled(),
        quick=quick,
        seconds=perf_counter() - began,
        values=values,
    )


def _watch_part(
    watch: Callable[[Progress], object], part: _Part, done: float, total: float, share: float
) -> None:
    watch(Progress(part.doing, (done + share * part.seconds) / total))


def _parts(quick: bool) -> list[_Part]:
    numbers = (1, 2, 4) if quick else (1, 2, 4, 8)
    turns, seconds = (2, 0.06) if quick else (3, 0.1)
    parts = [
        # First, before the process has grown.
        _Part("import and memory", 1, partial(footprint.measure, 5 if quick else 15)),
        _Part("steps on one thread", 2 if quick else 5, partial(steps.measure, 8 if quick else 25)),
        _Part(
            "steps on several threads",
            20 * len(numbers) * turns * seconds,
            partial(threads.measure, numbers, turns, seconds),
        ),
    ]
    if is_there(Contender.PYTORCH):
        parts.append(
            _Part(
                "PyTorch's optimizers",
                3 if quick else 6,
                partial(_measure_optimizers, 5 if quick else 12),
            )
        )
    return parts


def _measure_optimizers(turns: int, watch: Callable[[float], object]) -> _Values:
    from kineto_step_tracker.bench import optimizers

    return optimizers.measure(turns, watch)


def import_contenders() -> None:
    """Import what is to be timed, so that it is known what there is. `run` does it too."""
    for contender in Contender:
        is_there(contender)


def environment() -> dict[str, str]:
    """Say on what the package runs in this process, for people who read the figures."""
    gil = "with the GIL" if _gil_enabled() else "without the GIL"
    return {
        "Python": f"{platform.python_version()}, {gil}",
        "backend": backend,
        "machine": f"{platform.system()}, {_processor()}, {os.cpu_count()} cores",
        **{name: _version(name) for name in ("torch", "cereggii", "atomics")},
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _version(name: str) -> str:
    if importlib.util.find_spec(name) is not None and (trouble := trouble_with(name)):
        return f"cannot be imported ({trouble.splitlines()[0]})"
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"


def _gil_enabled() -> bool:
    enabled: Callable[[], bool] = getattr(sys, "_is_gil_enabled", lambda: True)
    return enabled()
