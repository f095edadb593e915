"""What can be put under stress, all with the same five operations.

It imports the package's trackers, and PyTorch where its own class is asked for.
"""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from functools import partial
from typing import Any, Protocol

from kineto_step_tracker.textbook import LockedStepTracker, TextbookStepTracker
from kineto_step_tracker.tracker import StepTracker


class Subject(StrEnum):
    """Ours; PyTorch's algorithm in our own words, bare and behind a lock; PyTorch's own class."""

    OURS = "ours"
    TEXTBOOK = "textbook"
    LOCKED = "locked"
    PYTORCH = "pytorch"


class Tracker(Protocol):
    """What all of them can do."""

    def init_step_count(self, requester: str) -> None: ...
    def erase_step_count(self, requester: str) -> bool: ...
    def increment_step(self, requester: str) -> int: ...
    def current_step(self) -> int: ...
    def step_counts(self) -> dict[str, int]: ...


_OF_THIS_PACKAGE: dict[Subject, Callable[[Callable[[int], object]], Tracker]] = {
    Subject.OURS: StepTracker,
    Subject.TEXTBOOK: TextbookStepTracker,
    Subject.LOCKED: LockedStepTracker,
}


@contextmanager
def tracker_of(subject: Subject, on_step: Callable[[int], object]) -> Iterator[Tracker]:
    """Make a tracker at step 0, for as long as the context lasts."""
    if subject == Subject.PYTORCH:
        with _pytorch(on_step) as stock:
            yield stock
    else:
        yield _OF_THIS_PACKAGE[subject](on_step)


def has_handles(tracker: Tracker) -> bool:
    return isinstance(tracker, StepTracker)


def incrementer(tracker: Tracker, requester: str) -> Callable[[], int]:
    """Register a requester that is unknown, and return what increments it, by handle if it can."""
    if isinstance(tracker, StepTracker):
        return tracker.requester(requester).increment
    if requester not in tracker.step_counts():
        tracker.init_step_count(requester)
    return partial(tracker.increment_step, requester)


@contextmanager
def _pytorch(on_step: Callable[[int], object]) -> Iterator[Tracker]:
    """PyTorch's own methods on counts of their own, with its Kineto replaced."""
    from torch.autograd import profiler

    class Stock(profiler.KinetoStepTracker):
        _current_step = 0

        @classmethod
        def step_counts(cls) -> dict[str, int]:
            return cls._step_dict.copy()

    Stock._step_dict = defaultdict(int)
    module: Any = profiler
    kineto_step = module._kineto_step
    # Kineto is not told which step it is: the one behind the last that PyTorch has noted.
    module._kineto_step = lambda: on_step(Stock._current_step + 1)
    try:
        with warnings.catch_warnings():
            # It warns when it sees that it has skipped a step; the violations say so too.
            warnings.simplefilter("ignore")
            yield Stock
    finally:
        module._kineto_step = kineto_step
