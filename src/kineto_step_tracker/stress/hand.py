"""One thread of control that uses the tracker, and notes what it did and what it saw.

It imports `subjects`. Workers, the callback, the signal handler and the finalisers each have a hand
of their own, so that no note needs a lock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TypeVar

from kineto_step_tracker.stress.subjects import Tracker, has_handles, incrementer

_T = TypeVar("_T")


class CallbackError(Exception):
    """What the callback raises, on purpose."""


class CallbackInterrupt(KeyboardInterrupt):
    """What the callback raises as if Ctrl-C had been pressed in it."""


class Hand:
    """Uses the tracker for one thread of control."""

    def __init__(self, tracker: Tracker) -> None:
        self.operations: dict[str, int] = {}
        self.increments: Counter[str] = Counter()
        self.errors = 0
        self.violations: dict[str, tuple[int, str]] = {}
        self._tracker = tracker
        self._floor = 0

    def increment(
        self, requester: str, times: int = 1, handle: Callable[[], int] | None = None
    ) -> None:
        """By name, or by the requester's handle."""
        floor = self._floor
        for _ in range(times):
            try:
                step = self._tracker.increment_step(requester) if handle is None else handle()
            except BaseException as error:
                self._caught(error)
            else:
                if step < floor:
                    self.found("the global step fell", f"from {floor} to {step}")
                floor = step
        self._floor = floor
        self.increments[requester] += times
        by_name = handle is None or not has_handles(self._tracker)
        self._note("increments by name" if by_name else "increments by handle", times)

    def initialise(self, requester: str) -> None:
        self._note("initialisations")
        self._attempt(self._tracker.init_step_count, requester)

    def erase(self, requester: str) -> bool | None:
        """None if an error of the callback took the place of the answer."""
        self._note("erasures")
        return self._attempt(self._tracker.erase_step_count, requester)

    def handle_of(self, requester: str) -> Callable[[], int]:
        self._note("handles made" if has_handles(self._tracker) else "initialisations")
        return incrementer(self._tracker, requester)

    def look(self) -> dict[str, int] | None:
        """All counts; None if an error of the callback took their place."""
        self._note("looks at all counts")
        counts = self._attempt(lambda _: self._tracker.step_counts(), "")
        step = self._tracker.current_step()
        if counts and max(counts.values()) > step:
            self.found("a count above the global step", f"{max(counts.values())}, at step {step}")
        return counts

    def found(self, violation: str, seen: str, times: int = 1) -> None:
        before, first = self.violations.get(violation, (0, seen))
        self.violations[violation] = (before + times, first)

    def _attempt(self, operation: Callable[[str], _T], requester: str) -> _T | None:
        try:
            return operation(requester)
        except BaseException as error:
            self._caught(error)
            return None

    def _caught(self, error: BaseException) -> None:
        of_callback = _errors_of_callback(error)
        if of_callback == 0:
            if not isinstance(error, Exception):
                raise error
            self.found("an operation failed", f"{type(error).__name__}: {error}")
        self.errors += of_callback

    def _note(self, kind: str, times: int = 1) -> None:
        self.operations[kind] = self.operations.get(kind, 0) + times


def meddle(hand: Hand, contested: Sequence[str], turn: int) -> None:
    """Do something to a requester to which others do the like at the same time."""
    if not contested:
        return
    kind, number = turn % 4, turn // 4
    requester = contested[number % len(contested)]
    if kind == 0:
        hand.initialise(requester)
    elif kind == 1:
        hand.erase(requester)
    elif kind == 2:
        hand.increment(requester)
    else:
        hand.increment(requester, handle=hand.handle_of(requester))


def _errors_of_callback(error: BaseException | None) -> int:
    """How many of the callback's errors an operation has raised, as one or as a group."""
    if error is None:
        return 0
    if isinstance(error, BaseExceptionGroup):
        return sum(map(_errors_of_callback, error.exceptions))
    # The cause of an interrupt is what the callback had raised before it.
    own = isinstance(error, CallbackError | CallbackInterrupt)
    return own + _errors_of_callback(error.__cause__)
