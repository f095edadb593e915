"""Stress: a tracker hammered by many threads, with every invariant checked while it runs.

It imports the standard library and its own rooms: `subjects`, the trackers, and `hammer`, the
threads. `run` hammers in a process of its own, so that a tracker that hangs or crashes is a
violation like any other. It knows no terminal.
"""

from __future__ import annotations

import faulthandler
import os
import pickle
import platform
import queue
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import IO, Any, TypeVar, cast

from kineto_step_tracker._atomic import backend
from kineto_step_tracker.stress.subjects import Subject

__all__ = ["Outcome", "Plan", "Progress", "Scenario", "Subject", "Violation", "run"]

MOST_THREADS = 256
MOST_REQUESTERS = 100_000
MOST_SECONDS = 86_400

_SECONDS_TO_START = 120  # it may have to import PyTorch
_CHILD = "from kineto_step_tracker.stress import _hammer_and_tell; _hammer_and_tell()"


_Choice = TypeVar("_Choice", bound=StrEnum)


class Scenario(StrEnum):
    """What a run is made of. Increments and looks at the counts are part of every one.

    - ``count``: nothing else.
    - ``churn``: requesters are also initialised, erased and registered anew.
    - ``callbacks``: the callback sleeps, raises, interrupts and comes back into the tracker.
    - ``interrupts``: signal handlers and finalisers use the tracker, at any moment.
    - ``all``: everything at once.
    """

    COUNT = "count"
    CHURN = "churn"
    CALLBACKS = "callbacks"
    INTERRUPTS = "interrupts"
    ALL = "all"


@dataclass(frozen=True)
class Plan:
    """What to run.

    Args:
        threads: how many threads step, the process's main thread among them; 1 to 256.
        requesters: how many requesters they share, 1 to 100 000. Each thread has one more of its
            own. The first half of the shared ones, rounded up, is never erased, so that their
            counts are known exactly; where the scenario says so, any thread initialises and
            erases the others.
        seconds: for how long; above 0, at most a day.
        scenario: what the run is made of.
        tracker: the one to run.
        seed: decides what every thread does, though not how they interleave; 0 or more.

    Raises:
        TypeError: an argument is no number.
        ValueError: an argument is out of range.

    >>> Plan(threads=0)
    Traceback (most recent call last):
        ...
    ValueError: threads must be from 1 to 256, not 0
    """

    threads: int = 4
    requesters: int = 4
    seconds: float = 10
    scenario: Scenario = Scenario.ALL
    tracker: Subject = Subject.OURS
    seed: int = 0

    def __post_init__(self) -> None:
        _check_whole("threads", self.threads, 1, MOST_THREADS)
        _check_whole("requesters", self.requesters, 1, MOST_REQUESTERS)
        _check_whole("seed", self.seed, 0)
        _check_seconds("seconds", self.seconds)
        # By value is as good as by name.
        object.__setattr__(self, "scenario", _one_of(Scenario, "scenario", self.scenario))
        object.__setattr__(self, "tracker", _one_of(Subject, "tracker", self.tracker))

    @property
    def command(self) -> str:
        """The command line that runs it."""
        return shlex.join(
            [
                *("kineto-step-tracker", "stress"),
                *("--threads", str(self.threads)),
                *("--requesters", str(self.requesters)),
                *("--seconds", f"{self.seconds:g}"),
                *("--scenario", self.scenario),
                *("--tracker", self.tracker),
                *("--seed", str(self.seed)),
            ]
        )


@dataclass(frozen=True)
class Violation:
    """Something that the contract excludes.

    Args:
        kind: what it is, a few words.
        times: how often that was seen.
        first: what was seen first.
    """

    kind: str
    times: int
    first: str


@dataclass(frozen=True)
class Progress:
    """The run at some moment; its numbers are read one after another while it goes on.

    Args:
        seconds: for how long the threads have been stepping.
        operations: how many operations have come to their end.
        step: the last step that the callback was called for.
        violations: what has been seen so far that the contract excludes.
        standstill: where each thread stands, if for long no operation has come to its end.
    """

    seconds: float
    operations: int
    step: int
    violations: tuple[Violation, ...] = ()
    standstill: tuple[str, ...] = ()


@dataclass(frozen=True)
class Outcome:
    """What came of a run.

    Args:
        plan: what was run.
        environment: the Python, whether its GIL is on, and the package's backend.
        seconds: how long the threads stepped.
        operations: how many operations they finished, by kind.
        rises: by how much the global step has risen.
        callbacks: how many times the callback was called.
        errors: how many errors the callback raised.
        signals: how many signals were handled.
        finalisers: how many objects were finalised that used the tracker.
        violations: what the contract excludes and was seen all the same.

    Of a process that crashed or hung nobody knows more than its last report: then ``rises`` and
    what stands behind it is None, ``violations`` excepted.
    """

    plan: Plan
    environment: str
    seconds: float
    operations: dict[str, int]
    rises: int | None
    callbacks: int | None
    errors: int | None
    signals: int | None
    finalisers: int | None
    violations: tuple[Violation, ...]


def run(
    plan: Plan,
    watch: Callable[[Progress], object] = lambda progress: None,
    patience: float = 10,
) -> Outcome:
    """Carry out a plan in a process of its own, and return what came of it.

    A process that crashes is a violation, and so is one that hangs, which is then stopped.

    Args:
        plan: what to run.
        watch: is called on this thread several times a second. What it raises ends the run and
            leaves `run`, as does Ctrl-C; no process is left behind.
        patience: for how many seconds no operation may come to its end before that is a hang.
            A process that does not even report is given twice as long.

    Raises:
        ImportError: PyTorch's own class was asked for, and PyTorch cannot be imported.
        TypeError: ``plan`` is no `Plan`, ``watch`` not callable, or ``patience`` no number.
        ValueError: ``patience`` is out of range.

    >>> outcome = run(Plan(threads=2, seconds=0.1))
    >>> outcome.violations
    ()
    """
    if not isinstance(plan, Plan):
        raise TypeError(f"plan must be a Plan, not {type(plan).__name__} ({plan!r})")
    if not callable(watch):
        raise TypeError(f"watch must be callable, not {watch!r}")
    _check_seconds("patience", patience)
    # Not by multiprocessing, which would import the caller's main module once more. Ctrl-C on a
    # terminal is for this process only, so the other one gets a session of its own.
    process = subprocess.Popen(
        [sys.executable, "-c", _CHILD],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        orders, reports = cast("IO[bytes]", process.stdin), cast("IO[bytes]", process.stdout)
        with orders:
            pickle.dump((plan, patience), orders)
            orders.flush()
            return _listen(plan, watch, patience, process, reports)
    finally:
        process.kill()
        process.wait()


def _listen(
    plan: Plan,
    watch: Callable[[Progress], object],
    patience: float,
    process: subprocess.Popen[bytes],
    reports: IO[bytes],
) -> Outcome:
    told: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def receive() -> None:
        for report in _unpickled(reports):
            told.put(report)
        told.put(None)

    threading.Thread(target=receive, daemon=True).start()
    progress = Progress(0.0, 0, 0)
    silence, silent = float(_SECONDS_TO_START), 0
    while True:
        try:
            # Second by second: of a time in which both processes were stopped only one counts.
            report = told.get(timeout=1)
        except queue.Empty:
            silent += 1
            if silent < silence:
                continue
            # It answers by printing where its threads stand, if it can.
            os.kill(process.pid, signal.SIGABRT)
            with suppress(subprocess.TimeoutExpired):
                process.wait(1)
            seen = f"not a word for {silence:g} s; see above where its threads stood"
            return _cut_short(plan, progress, "the process fell silent", seen)
        silence, silent = 2 * patience, 0
        if isinstance(report, Outcome):
            return report
        if isinstance(report, Exception):
            raise report
        if report is None:
            return _cut_short(plan, progress, "the process died", _end_of(process.wait()))
        progress = report
        if progress.standstill:
            kind = f"no operation finished for {patience:g} s"
            return _cut_short(plan, progress, kind, "; ".join(progress.standstill))
        watch(progress)


def _unpickled(reports: IO[bytes]) -> Iterator[object]:
    with reports, suppress(EOFError, pickle.UnpicklingError):  # of a report cut in the middle
        while True:
            yield pickle.load(reports)


def environment() -> str:
    """Say on what the package runs in this process."""
    gil = "on" if getattr(sys, "_is_gil_enabled", lambda: True)() else "off"
    return f"Python {platform.python_version()}, GIL {gil}, backend {backend}"


def _check_whole(argument: str, value: object, least: int, most: int | None = None) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{argument} must be an int, not {type(value).__name__} ({value!r})")
    if value < least or (most is not None and value > most):
        expected = f"at least {least}" if most is None else f"from {least} to {most}"
        raise ValueError(f"{argument} must be {expected}, not {value}")


def _one_of(choices: type[_Choice], argument: str, value: str) -> _Choice:
    try:
        return choices(value)
    except ValueError:
        raise ValueError(f"{argument} must be one of {', '.join(choices)}, not {value!r}") from None


def _check_seconds(argument: str, value: object) -> None:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise TypeError(f"{argument} must be a number, not {type(value).__name__} ({value!r})")
    if not 0 < value <= MOST_SECONDS:
        raise ValueError(f"{argument} must be above 0 and at most {MOST_SECONDS}, not {value}")


def _hammer_and_tell() -> None:
    """What the process of a run does: the plan comes by standard input, reports leave by output."""
    faulthandler.enable()
    plan, patience = pickle.load(sys.stdin.buffer)
    reports = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    # What else is printed here, by PyTorch say, must not come between them.
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    threading.Thread(target=_end_with_the_parent, daemon=True).start()

    def tell(report: object) -> None:
        pickle.dump(report, reports)
        reports.flush()

    try:
        from kineto_step_tracker.stress.hammer import hammer

        tell(hammer(plan, tell, patience))
    except Exception as error:
        tell(error)


def _end_with_the_parent() -> None:
    """Standard input stays open for as long as the parent lives."""
    os.read(sys.stdin.fileno(), 1)
    os._exit(1)


def _cut_short(plan: Plan, progress: Progress, kind: str, seen: str) -> Outcome:
    return Outcome(
        plan,
        environment(),
        progress.seconds,
        {"of any kind, at least": progress.operations},
        rises=None,
        callbacks=None,
        errors=None,
        signals=None,
        finalisers=None,
        violations=(Violation(kind, 1, seen), *progress.violations),
    )


def _end_of(status: int) -> str:
    if status < 0:
        named = -status in set(signal.Signals)
        return f"killed by {signal.Signals(-status).name if named else f'signal {-status}'}"
    return f"with exit status {status}"
