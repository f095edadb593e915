"""Small programs on a tracker: how they are written, how they run, what must be true of each run.

A program is a line of text, ``before: thread | thread ^ handler / callback``:

- *before*, optional, are operations done before the threads start.
- A *thread* is a row of operations with ``;`` between them. A *handler* is the same, run as a
  signal handler on the thread to its left: at any point of it, from its start to its end.
- *callback*, optional, is one of `CALLBACKS`; without it the tracker counts only.

The operations are ``increment a``, ``init a``, ``erase a``, ``current``, ``counts``,
``handle a``, which makes a handle, and ``step a``, ``try a`` and ``count a``, which use it.
``try a`` counts unless the registration that the handle holds is erased.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import chain, groupby, islice
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Any

from .explorer import TOO_LONG, Call, bit, explore, scheduler, wander
from .specification import UNKNOWN, Past, linearizable
from .substrate import load_tracker

SOURCE = Path(__file__).parents[2] / "src" / "kineto_step_tracker" / "tracker.py"
START = 5

# What the callback does in the first, second, third step of an execution.
CALLBACKS: dict[str, dict[int, str | type[BaseException]]] = {
    "plain": {},
    "reenters": {1: "increment a"},
    "reenters to erase": {1: "erase a", 2: "increment a"},
    "raises": {1: ValueError, 2: ValueError, 3: ValueError},
    "interrupts": {1: KeyboardInterrupt},
    "raises, interrupts": {1: ValueError, 2: KeyboardInterrupt, 3: ValueError},
}


@dataclass(frozen=True)
class Program:
    """A program, parsed."""

    before: tuple[str, ...]
    threads: list[tuple[str, ...]]
    hosts: list[int]
    callback: str

    @classmethod
    def parse(cls, text: str) -> Program:
        before, _, text = text.rpartition(":")
        text, _, callback = text.partition("/")
        hosts: list[int] = []
        for number, kind in enumerate("|" + re.sub("[^|^]", "", text)):
            hosts.append(number - (kind == "^"))
            if hosts[hosts[-1]] != hosts[-1]:
                raise ValueError("a handler can have no handler")
        threads = [_operations(thread) for thread in re.split("[|^]", text)]
        return cls(_operations(before), threads, hosts, callback.strip())


def _operations(text: str) -> tuple[str, ...]:
    return tuple(operation.strip() for operation in text.split(";") if operation.strip())


@cache
def shipped() -> ModuleType:
    """The tracker.py that ships."""
    return load_tracker(SOURCE.read_text())


class Run:
    """One execution of a program."""

    def __init__(self, program: Program, module: ModuleType) -> None:
        self._program = program
        self._callback = CALLBACKS[program.callback] if program.callback else None
        self._steps: list[int] = []
        self._inside = False
        self._problems: list[str] = []
        self._handles: dict[str, Any] = {}
        scheduler.begin()
        self.tracker = module.StepTracker(self._on_step if program.callback else None, START)
        for atomic in "global_max", "dispatched", "baton":
            getattr(self.tracker, f"_{atomic}").label = atomic
        for operation in program.before:
            self._perform(operation, self._handles)
        scheduler.start([partial(self._thread, row) for row in program.threads], program.hosts)

    def _thread(self, operations: Sequence[str]) -> None:
        handles = self._handles.copy()
        for operation in operations:
            self._call(operation, handles)

    def _call(self, operation: str, handles: dict[str, Any]) -> None:
        call = scheduler.call(operation)
        try:
            call.result = self._perform(operation, handles)
        except (Exception, KeyboardInterrupt) as error:
            call.result = error
        scheduler.returned(call)

    def _perform(self, operation: str, handles: dict[str, Any]) -> object:
        action, _, name = operation.partition(" ")
        match action:
            case "increment":
                return self.tracker.increment_step(name)
            case "init":
                return self.tracker.init_step_count(name)
            case "erase":
                return self.tracker.erase_step_count(name)
            case "current":
                return self.tracker.current_step()
            case "counts":
                return self.tracker.step_counts()
            case "handle":
                handles[name] = self.tracker.requester(name)
                return None
            case "step":
                return handles[name].increment()
            case "try":
                return handles[name]._count_if_registered()
            case "count":
                return handles[name].count
        raise ValueError(f"unknown operation: {operation}")

    def _on_step(self, step: int) -> None:
        assert self._callback is not None
        scheduler.turn().changes(bit("callback"), "callback", step)
        if self._inside:
            self._problems.append(f"the callback overlaps itself at step {step}")
        self._inside = True
        self._steps.append(step)
        does = None
        if scheduler.exploring:
            does = self._callback.get(step - START)
            if any(not isinstance(error, Exception) for error in scheduler.calling().raised):
                self._problems.append(f"an interrupt was held up by step {step}")
        if isinstance(does, str):
            self._call(does, self._handles)
        scheduler.turn().changes(bit("callback"), "callback ends", step)
        self._inside = False
        if isinstance(does, type):
            error = does(step)
            scheduler.calling().raised.append(error)
            raise error

    def check(self) -> list[str]:
        """End the run, and say what was wrong with it."""
        stuck = scheduler.runnable()
        scheduler.stop()
        if stuck:
            return ["a thread waits or spins"]
        history = [
            Past(call.first, call.last, call.text, _plain(call.result)) for call in scheduler.calls
        ]
        last = ["current", "counts"]
        if "interrupts" in self._program.callback:
            # The steps behind an interrupt are run by the next rise.
            last = ["increment z", "erase z", *last]
        for moment, operation in enumerate(last, len(scheduler.events)):
            result = self._perform(operation, {})
            history.append(Past(moment, moment, operation, _plain(result)))
        problems = self._problems
        if not linearizable(START, self._program.before, history):
            problems.append(
                f"not linearizable; in the end {history[-2].result, history[-1].result}"
            )
        if self._callback is not None:
            expected = list(range(START + 1, self.tracker.current_step() + 1))
            if self._steps != expected:
                problems.append(f"the callback ran for steps {self._steps}, not {expected}")
        for call in scheduler.calls:
            problems.extend(_wrong_errors(call))
        return problems + self._too_many_tries()

    def _too_many_tries(self) -> list[str]:
        """Increments that tried more often to raise the global step than there are threads."""
        caller: dict[int, int] = {}
        for number, call in enumerate(scheduler.calls):  # those from a callback come after its own
            for event in scheduler.events[call.first : call.last + 1]:
                if event.thread == call.thread:
                    caller[event.position] = number
        tries = Counter(
            caller[event.position]
            for event in scheduler.events
            if event.text[0] is self.tracker._global_max and str(event.text[1]).startswith("cas")
        )
        return [
            f"{scheduler.calls[number].text} needed {count} tries to raise the step"
            for number, count in tries.items()
            if count > len(self._program.threads)
            and scheduler.calls[number].text.startswith(("increment", "step", "try"))
        ]


def _wrong_errors(call: Call) -> list[str]:
    """What was raised by the callbacks that a call ran must leave it, and nothing else may."""
    errors = [error for error in call.raised if isinstance(error, Exception)]
    left = call.result if isinstance(call.result, BaseException) else None
    problems = []
    if call.raised != errors:
        if left is not call.raised[-1]:
            problems.append(f"{call.text}: {call.raised[-1]!r} did not leave")
        left = call.raised[-1].__cause__
    leaving = list(left.exceptions) if isinstance(left, ExceptionGroup) else [left] if left else []
    if leaving != errors:
        problems.append(f"{call.text}: {errors} were raised and {leaving} left")
    for error in errors:
        notes = [f"raised by the on_step callback for step {error.args[0]}"]
        if getattr(error, "__notes__", []) != notes:
            problems.append(f"{call.text}: {error!r} has no note of its step, or several")
    return problems


def _plain(result: object) -> object:
    if isinstance(result, dict):
        return tuple(sorted(result.items()))
    return UNKNOWN if isinstance(result, BaseException) else result


@dataclass(frozen=True)
class Outcome:
    """What came of exploring a program: how many schedules, and the first that went wrong."""

    schedules: int
    cut: bool = False
    failure: str = ""


def examine(text: str, module: ModuleType | None = None, limit: int = 1_000_000) -> Outcome:
    """Run a program through every schedule that matters, and check each.

    Where there are more than ``limit``, it is cut: it gets so many of them, and so many random
    ones, since those of the explorer then differ near their ends only.
    """
    program = Program.parse(text)
    runs: list[Run] = []

    def start() -> None:
        runs[:] = [Run(program, module or shipped())]

    schedules = 0
    for cut, executions in (False, explore(start)), (True, wander(start, Random(text))):
        for _ in islice(executions, limit):
            schedules += 1
            if problems := runs[0].check():
                return Outcome(schedules, cut, _described(text, problems))
        if schedules < limit:
            return Outcome(schedules)
    return Outcome(schedules, cut=True)


def replay(text: str, seed: str, module: ModuleType | None = None) -> str:
    """Run a program under the schedule that a seed stands for, and describe the run.

    The seed ``A3B2`` lets A do three events and then B two. Behind its end the threads go on one
    after the other.
    """
    run = Run(Program.parse(text), module or shipped())
    for letter, events in re.findall(r"([A-Z])(\d+)", seed):
        for _ in range(int(events)):
            if ord(letter) - ord("A") not in scheduler.runnable():
                scheduler.stop()
                raise ValueError(f"thread {letter} cannot go on: the seed is not of this program")
            scheduler.follow([ord(letter) - ord("A")])
    while (runnable := scheduler.runnable()) and len(scheduler.events) < TOO_LONG:
        scheduler.follow(runnable[:1])
    return _described(text, run.check())


def _described(text: str, problems: list[str]) -> str:
    """The run that was just checked: its program, its seed, a column a thread, what was wrong."""
    letters = [chr(ord("A") + number) for number in range(len(scheduler.hosts))]
    seed = "".join(
        f"{letters[thread]}{len(list(events))}" for thread, events in groupby(scheduler.schedule)
    )
    states = {shipped()._FRESH: "fresh", shipped()._RETIRED: "retired"}
    rows = [
        [
            letter if letter == host else f"{letter}, a signal handler on {host}"
            for letter, host in zip(letters, map(letters.__getitem__, scheduler.hosts), strict=True)
        ]
    ]
    for event in scheduler.events:
        words = [
            *(f"{call.text}:" for call in scheduler.calls if call.first == event.position),
            *(states.get(word, str(getattr(word, "label", word))) for word in event.text),
            *(f"→ {call.result!r}" for call in scheduler.calls if call.last == event.position),
        ]
        rows.append([""] * len(letters))
        rows[-1][event.thread] = " ".join(words)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    table = (
        "  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )
    command = f'python -m tests.interleavings "{text}" {seed}'
    return "\n".join(chain([command], table, problems or ["as specified"]))
