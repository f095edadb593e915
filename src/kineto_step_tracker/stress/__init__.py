"""Stress: a tracker hammered by many threads, with every invariant checked while it runs.

It imports the standard library and its own rooms: `subjects`, the trackers, and `hammer`, the
threads. `run` hammers in a process of its own, so that a tracker that hangs or crashes is a
violation like any other. It knows no terminal.
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import platform
import shlex
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from multiprocessing.connection import Connection

from kineto_step_tracker._atomic import backend
from kineto_step_tracker.stress.subjects import Subject

_SECONDS_TO_START = 120  # it may have to import PyTorch
_MOST_THREADS = 256


class Scenario(StrEnum):
    """What a run is made of. Increments, by name and by handle, are part of every one.

    - ``count``: nothing else.
    - ``churn``: requesters are also initialised, erased, registered anew and looked at.
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
        requesters: how many requesters they share, at least 1. Each thread has one more of its
            own. The first half of the shared ones, rounded up, is never erased, so that their
            counts are known exactly; where the scenario says so, any thread initialises and
            erases the others.
        seconds: for how long; above 0.
        scenario: what the run is made of.
        subject: the tracker to run.
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
    subject: Subject = Subject.OURS
    seed: int = 0

    def __post_init__(self) -> None:
        _check_whole("threads", self.threads, 1, _MOST_THREADS)
        _check_whole("requesters", self.requesters, 1)
        _check_whole("seed", self.seed, 0)
        _check_seconds("seconds", self.seconds)
        # By value is as good as by name; these raise what they should.
        Scenario(self.scenario)
        Subject(self.subject)

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
                *("--tracker", self.subject),
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
    """

    plan: Plan
    environment: str
    seconds: float
    operations: dict[str, int]
    rises: int
    callbacks: int
    errors: int
    signals: int
    finalisers: int
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
        TypeError: ``patience`` is no number.
        ValueError: ``patience`` is not above 0.

    Like all that starts processes in Python, it is to be called from a script only under
    ``if __name__ == "__main__":``.

    >>> outcome = run(Plan(threads=2, seconds=0.1))
    >>> outcome.violations
    ()
    """
    _check_seconds("patience", patience)
    processes = multiprocessing.get_context("spawn")
    receiver, sender = processes.Pipe(duplex=False)
    process = processes.Process(target=_hammer_and_tell, args=(plan, patience, sender), daemon=True)
    progress = Progress(0.0, 0, 0)
    try:
        with _ctrl_c_kept_from_children():
            process.start()
        sender.close()
        silence: float = _SECONDS_TO_START
        while receiver.poll(silence):
            silence = 2 * patience
            told = receiver.recv()
            if isinstance(told, Outcome):
                return told
            if isinstance(told, ImportError):
                raise told
            progress = told
            if progress.standstill:
                where = "; ".join(progress.standstill)
                return _cut_short(plan, progress, "no operation came to its end", where)
            watch(progress)
        # It answers by printing where its threads stand, if it can.
        os.kill(process.pid or 0, signal.SIGABRT)
        process.join(1)
        seen = f"not a word for {silence:g} s; see above where its threads stood"
        return _cut_short(plan, progress, "the process fell silent", seen)
    except EOFError:
        process.join()
        return _cut_short(plan, progress, "the process died", _end_of(process.exitcode or 0))
    finally:
        receiver.close()
        if process.pid is not None:
            process.kill()
            process.join()


def environment() -> str:
    """Say on what the package runs in this process."""
    gil = "on" if getattr(sys, "_is_gil_enabled", lambda: True)() else "off"
    return f"Python {platform.python_version()}, GIL {gil}, backend {backend}"


def _check_whole(argument: str, value: object, least: int, most: int | None = None) -> None:
    if not isinstance(value, int):
        raise TypeError(f"{argument} must be an int, not {type(value).__name__} ({value!r})")
    if value < least or (most is not None and value > most):
        expected = f"at least {least}" if most is None else f"from {least} to {most}"
        raise ValueError(f"{argument} must be {expected}, not {value}")


def _check_seconds(argument: str, value: object) -> None:
    if not isinstance(value, int | float):
        raise TypeError(f"{argument} must be a number, not {type(value).__name__} ({value!r})")
    if not value > 0:
        raise ValueError(f"{argument} must be above 0, not {value}")


def _hammer_and_tell(plan: Plan, patience: float, sender: Connection) -> None:
    faulthandler.enable()
    try:
        # In the child only, as it may import PyTorch.
        from kineto_step_tracker.stress.hammer import hammer

        sender.send(hammer(plan, sender.send, patience))
    except ImportError as error:
        sender.send(error)


def _cut_short(plan: Plan, progress: Progress, kind: str, seen: str) -> Outcome:
    return Outcome(
        plan,
        environment(),
        progress.seconds,
        {"of any kind": progress.operations},
        rises=progress.step,
        callbacks=progress.step,
        errors=0,
        signals=0,
        finalisers=0,
        violations=(Violation(kind, 1, seen), *progress.violations),
    )


def _end_of(status: int) -> str:
    if status < 0:
        return f"of {signal.Signals(-status).name}"
    return f"with exit status {status}"


@contextmanager
def _ctrl_c_kept_from_children() -> Iterator[None]:
    """A terminal sends Ctrl-C to every process; children keep a signal blocked that was so."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
